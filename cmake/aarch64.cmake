# Compiles for aarch64 Linux by a GCC that runs elsewhere: Debian's g++-aarch64-linux-gnu. AOEXT_TOOLS is the root that it was
# unpacked into (tools/cross.py); empty, where it is on PATH.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(AOEXT_TOOLS "" CACHE PATH "The root that holds another platform's compiler")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES AOEXT_TOOLS)
if(AOEXT_TOOLS)
  set(CMAKE_SYSROOT ${AOEXT_TOOLS})
  set(CMAKE_CXX_COMPILER ${AOEXT_TOOLS}/usr/bin/aarch64-linux-gnu-g++)
else()
  set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
endif()
