# Which devices are compiled in: AOEXT_WITH_CUDA and AOEXT_WITH_SYCL become ON or OFF.
#
# ON asks for a device and fails with what to install; AUTO takes what is there. A device is there when its
# compiler or packages are and csrc/ has kernels for it.
include(CheckLanguage)

function(aoext_choose device wanted found kernels how_to_install)
  file(GLOB sources CONFIGURE_DEPENDS ${kernels})
  if(NOT wanted MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "AOEXT_${device} must be AUTO, ON or OFF, got ${wanted}")
  elseif(wanted STREQUAL "ON" AND NOT found)
    message(FATAL_ERROR "AOEXT_${device}=ON, but ${how_to_install}")
  elseif(wanted STREQUAL "ON" AND NOT sources)
    message(FATAL_ERROR "AOEXT_${device}=ON, but this version of aoext has no ${device} kernels (${kernels}): "
                        "use AUTO or OFF; the generic kernels serve the device")
  elseif(wanted STREQUAL "OFF" OR NOT found OR NOT sources)
    set(AOEXT_WITH_${device} OFF PARENT_SCOPE)
  else()
    set(AOEXT_WITH_${device} ON PARENT_SCOPE)
  endif()
endfunction()

if(NOT AOEXT_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)  # it may have been installed since this build was configured
  endif()
  check_language(CUDA)
endif()
aoext_choose(CUDA "${AOEXT_CUDA}" "${CMAKE_CUDA_COMPILER}" "csrc/cuda/*.cpp"
  "no CUDA compiler was found: install the CUDA toolkit (nvcc 13.0 or newer) and put nvcc on PATH or set CUDACXX")

execute_process(COMMAND ${Python_EXECUTABLE} -c "import sys; print(sys.prefix)"
  OUTPUT_VARIABLE python_prefix OUTPUT_STRIP_TRAILING_WHITESPACE)
find_path(AOEXT_SYCL_INCLUDE sycl/sycl.hpp PATHS ${python_prefix}/include)
find_path(AOEXT_ONEDNN_INCLUDE oneapi/dnnl/dnnl_sycl.hpp PATHS ${python_prefix}/include)
find_file(AOEXT_OPENCL_CPU libintelocl.so PATHS ${python_prefix}/lib NO_DEFAULT_PATH)  # runs the kernels' compiler
if(AOEXT_SYCL_INCLUDE AND AOEXT_ONEDNN_INCLUDE AND AOEXT_OPENCL_CPU)
  set(sycl_found TRUE)
endif()
aoext_choose(SYCL "${AOEXT_SYCL}" "${sycl_found}" "csrc/sycl/*.cpp"
  "the SYCL headers or oneDNN's were not found: pip install intel-sycl-rt intel-opencl-rt onednn onednn-devel")

message(STATUS "aoext: CUDA ${AOEXT_WITH_CUDA}, SYCL ${AOEXT_WITH_SYCL}")
