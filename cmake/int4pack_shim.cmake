# libaoext_int4pack_shim.a: weight_int4pack_mm for tensors that are not torch's (docs/int4pack_shim.md), as headers and a static
# library without torch. It is a library of its own because torch exports the same symbols for its own tensors.
#
# What computes is compiled of the same sources by the same options for both libraries, and tests hold them to the same bits:
# aoext_int4pack_parts here, and what devices add to AOEXT_INT4PACK_OBJECTS.
add_library(aoext_int4pack_shim STATIC csrc/int4pack_shim/check.cpp csrc/int4pack_shim/cpu.cpp ${AOEXT_INT4PACK_OBJECTS})
target_link_libraries(aoext_int4pack_shim PRIVATE aoext_options)
target_include_directories(aoext_int4pack_shim PRIVATE csrc)
target_include_directories(aoext_int4pack_shim SYSTEM PRIVATE ${AOEXT_TORCH_INCLUDE})  # names of dtypes: no symbol of torch's
if(AOEXT_WITH_CUDA)
  target_sources(aoext_int4pack_shim PRIVATE csrc/int4pack_shim/cuda.cpp)
  target_include_directories(aoext_int4pack_shim SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endif()
if(AOEXT_WITH_SYCL)
  target_sources(aoext_int4pack_shim PRIVATE csrc/int4pack_shim/xpu.cpp ${AOEXT_INT4PACK_MODULES})
  target_link_libraries(aoext_int4pack_shim PRIVATE aoext_sycl_runtime)
endif()
add_dependencies(aoext aoext_int4pack_shim)  # whoever builds the one library has the other beside it
if(NOT WIN32)  # there it would be of this compiler's C++ ABI, which is not Windows' own
  install(TARGETS aoext_int4pack_shim ARCHIVE DESTINATION aoext/lib)
  install(FILES csrc/int4pack_shim/include/aoext/int4pack_shim.h DESTINATION aoext/include/aoext)
endif()
