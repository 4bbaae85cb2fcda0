# Compiles for macOS on Apple's processors by the clang of PyPI's ziglang, with its libc++.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(AOEXT_ZIG "" CACHE FILEPATH "The program zig of the package ziglang")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES AOEXT_ZIG)
include(${CMAKE_CURRENT_LIST_DIR}/zig.cmake)
aoext_zig(aarch64-macos.14.0)
