# The CUDA part of the library: kernels for every GPU from compute capability 8.0 on, and Hopper's own beside them.
#
# The language is enabled here, where it is wanted. cudart is linked statically, so the library loads without CUDA.
set(CMAKE_CUDA_ARCHITECTURES OFF)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)

# aoext_cuda_kernels(name architectures sources…): object code for these architectures.
function(aoext_cuda_kernels name architectures)
  add_library(${name} OBJECT ${ARGN})
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${architectures}" CUDA_VISIBILITY_PRESET hidden)
  target_include_directories(${name} PRIVATE csrc)
  target_compile_options(${name} PRIVATE -Xcompiler=-Wall,-ffile-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}/=)
  target_sources(aoext PRIVATE $<TARGET_OBJECTS:${name}>)
endfunction()

# PTX for compute_90 is what newer GPUs compile for themselves; code for 90a runs on compute capability 9.0 alone.
file(GLOB kernels CONFIGURE_DEPENDS csrc/cuda/kernels/*.cu)
aoext_cuda_kernels(aoext_cuda "80-real;89-real;90" ${kernels})
file(GLOB kernels CONFIGURE_DEPENDS csrc/cuda/kernels/sm90a/*.cu)
aoext_cuda_kernels(aoext_cuda_sm90a "90a-real" ${kernels})

file(GLOB sources CONFIGURE_DEPENDS csrc/cuda/*.cpp)
target_sources(aoext PRIVATE ${sources})
target_include_directories(aoext SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(aoext PRIVATE CUDA::cudart_static)
