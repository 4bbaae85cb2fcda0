# The CUDA part of the library: kernels for every GPU from compute capability 8.0 on, and Hopper's own beside them.
#
# The language is enabled here, where it is wanted. cudart is linked statically, so the library loads without CUDA. Targets of
# kernels name their architectures themselves. aoext, which is older than this line, holds the objects of such targets, so that
# CMake's Makefiles ask it for its own architectures, too: it has none to compile for.
set(CMAKE_CUDA_ARCHITECTURES OFF)
set_target_properties(aoext PROPERTIES CUDA_ARCHITECTURES OFF)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake before 3.26 does not know that nvcc 12 and newer take it
endif()
find_package(CUDAToolkit 13.0 REQUIRED)

# PTX for compute_90 is what newer GPUs compile for themselves.
if(AOEXT_CUDA_ARCHITECTURES STREQUAL "ALL")
  set(architectures 80-real 89-real 90)
else()
  set(architectures "")
  foreach(capability IN LISTS AOEXT_CUDA_ARCHITECTURES)
    if(NOT capability MATCHES "^[0-9]+$" OR capability LESS 80)
      message(FATAL_ERROR "AOEXT_CUDA_ARCHITECTURES must be ALL or a list of compute capabilities from 80 on, such as 80;90, "
                          "got ${AOEXT_CUDA_ARCHITECTURES}")
    elseif(capability GREATER 90)
      list(APPEND architectures 90-virtual)
    elseif(capability EQUAL 90)
      list(APPEND architectures 90-real)
    elseif(capability EQUAL 89)
      list(APPEND architectures 89-real)
    else()
      list(APPEND architectures 80-real)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES architectures)
endif()
message(STATUS "aoext: CUDA kernels for ${architectures}")
# All that is compiled for these GPUs, not linked: `make check-cuda`.
add_custom_target(aoext_cuda_objects)

# aoext_cuda_kernels(name architectures sources…): object code for these architectures.
function(aoext_cuda_kernels name architectures)
  add_library(${name} OBJECT ${ARGN})
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${architectures}" CUDA_VISIBILITY_PRESET hidden)
  target_include_directories(${name} PRIVATE csrc)
  target_compile_options(${name} PRIVATE -Xcompiler=-Wall,-fstack-protector-strong,-ffile-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}/=)
  target_sources(aoext PRIVATE $<TARGET_OBJECTS:${name}>)
  add_dependencies(aoext_cuda_objects ${name})
endfunction()

# Code for 90a runs on compute capability 9.0 alone; it is compiled always, since the choice of kernels refers to it. The kernels
# of weight_int4pack_mm stand apart, with the host code that plans and launches them: they go into a second library, too
# (cmake/int4pack_shim.cmake).
function(aoext_cuda_folder name architectures folder)
  file(GLOB kernels CONFIGURE_DEPENDS ${folder}/*.cu)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/ OUTPUT_VARIABLE int4pack)
  list(TRANSFORM int4pack APPEND .cu)
  list(REMOVE_ITEM kernels ${int4pack})
  # On 8.9 these alone are compiled for it: they multiply float8, or have it beside the tensor cores' work. What 8.9 has of
  # float8 beyond 8.0 is one instruction in place of seven to convert two numbers, which hides behind memory elsewhere: a
  # multiprocessor of an L40S or an RTX 4090 has 40 to 55 operations of a lane for each byte that it can read.
  set(of_float8 ${kernels})
  list(FILTER of_float8 INCLUDE REGEX "/(blocks|rowwise)_mma\\.cu$")
  list(TRANSFORM architectures REPLACE "^89" "80" OUTPUT_VARIABLE fewer)
  list(REMOVE_DUPLICATES fewer)
  if(of_float8)
    list(REMOVE_ITEM kernels ${of_float8})
    aoext_cuda_kernels(${name}_float8 "${architectures}" ${of_float8})
  endif()
  aoext_cuda_kernels(${name} "${fewer}" ${kernels})
  aoext_cuda_kernels(${name}_int4pack "${fewer}" ${int4pack})
endfunction()
aoext_cuda_folder(aoext_cuda "${architectures}" csrc/cuda/kernels
  int4_any int4_decode int4_grouped_ring int4_mma int4_ring launch tinygemm_convert tinygemm_mm)
aoext_cuda_folder(aoext_cuda_sm90a "90a-real" csrc/cuda/kernels/sm90a int4_batch int4_grouped_wgmma int4_wgmma)

set(shared_parts int4pack_product plan_int4 plan_tinygemm properties)
list(TRANSFORM shared_parts PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/csrc/cuda/)
list(TRANSFORM shared_parts APPEND .cpp)
file(GLOB sources CONFIGURE_DEPENDS csrc/cuda/*.cpp)
list(REMOVE_ITEM sources ${shared_parts})
foreach(part IN ITEMS aoext_cuda_host_int4pack aoext_cuda_host)
  add_library(${part} OBJECT)
  target_include_directories(${part} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_sources(aoext PRIVATE $<TARGET_OBJECTS:${part}>)
  add_dependencies(aoext_cuda_objects ${part})
endforeach()
target_sources(aoext_cuda_host PRIVATE ${sources})
target_link_libraries(aoext_cuda_host PRIVATE aoext_torch)
# Plans have functions of the same names, so that files do not share a unit: they share what they begin with.
target_precompile_headers(aoext_cuda_host PRIVATE csrc/generic/register.h)
target_sources(aoext_cuda_host_int4pack PRIVATE ${shared_parts})
target_include_directories(aoext_cuda_host_int4pack PRIVATE csrc)
target_include_directories(aoext_cuda_host_int4pack SYSTEM PRIVATE ${AOEXT_TORCH_INCLUDE})
target_link_libraries(aoext_cuda_host_int4pack PRIVATE aoext_options)
list(APPEND AOEXT_INT4PACK_OBJECTS $<TARGET_OBJECTS:aoext_cuda_host_int4pack>
  $<TARGET_OBJECTS:aoext_cuda_int4pack> $<TARGET_OBJECTS:aoext_cuda_sm90a_int4pack>)

# Linked without its include directories, which only the parts above need.
target_link_libraries(aoext PRIVATE $<LINK_ONLY:CUDA::cudart_static>)
