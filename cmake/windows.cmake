# Compiles for 64-bit Windows by the clang of PyPI's ziglang, with its mingw-w64 and its libc++, which is linked in.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR AMD64)
set(AOEXT_ZIG "" CACHE FILEPATH "The program zig of the package ziglang")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES AOEXT_ZIG)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
aoext_zig(x86_64-windows-gnu)
set(CMAKE_RC_COMPILER ${AOEXT_ZIG})  # CMake wants one; nothing is compiled by it
