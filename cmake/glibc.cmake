# AOEXT_GLIBC=2.28: the library runs where that is the newest glibc. It is linked against stubs of that version in place of the
# glibc that is here; what GCC's libstdc++ has since then comes with the library (csrc/old_glibc.cpp).
set(AOEXT_GLIBC "" CACHE STRING "The oldest glibc that the library is to run on, such as 2.28; empty: the one that is here")
if(NOT AOEXT_GLIBC)
  return()
endif()
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
  message(FATAL_ERROR "AOEXT_GLIBC is for x86_64 and aarch64, got ${CMAKE_SYSTEM_PROCESSOR}")
endif()
set(stubs ${CMAKE_CURRENT_BINARY_DIR}/glibc)
execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tools/glibc_stubs.py
                        ${CMAKE_SYSTEM_PROCESSOR} ${AOEXT_GLIBC} ${stubs}
                COMMAND_ERROR_IS_FATAL ANY)
message(STATUS "aoext: linked for glibc ${AOEXT_GLIBC}")
target_sources(aoext PRIVATE csrc/old_glibc.cpp)
target_link_options(aoext PRIVATE -nodefaultlibs LINKER:--as-needed,--allow-shlib-undefined,-z,defs)
# Torch's libraries may ask for a newer glibc; whoever has them, has it. The order counts: what comes later serves what came before.
target_link_libraries(aoext PRIVATE -lstdc++ -lgcc_s -lgcc ${stubs}/libm.so.6 ${stubs}/libpthread.so.0 ${stubs}/libdl.so.2
  ${stubs}/librt.so.1 ${stubs}/libc.so.6 ${stubs}/libld.so.2 ${stubs}/libc_nonshared.a -lgcc)
