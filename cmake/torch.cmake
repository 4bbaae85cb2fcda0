# Finds the headers and the one library that aoext links against, in the torch of the build environment.
# (torch's own CMake package would pull in every device's libraries and the unstable C++ API.)
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)
set(AOEXT_TORCH "" CACHE PATH
  "The folder torch of another platform's unpacked wheel, to compile for that; empty: the torch that Python imports")
if(AOEXT_TORCH)
  set(torch_dir ${AOEXT_TORCH})
else()
  # It is found, not imported, which takes seconds of every configuration.
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import importlib.util; print(importlib.util.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing ERROR_QUIET)
  if(torch_missing)
    message(FATAL_ERROR "aoext is built against torch, which ${Python_EXECUTABLE} cannot import: pip install torch")
  endif()
endif()
file(STRINGS ${torch_dir}/version.py version_line REGEX "^__version__ = ")
string(REGEX REPLACE ".*'(.*)'.*" "\\1" AOEXT_TORCH_VERSION "${version_line}")
set(AOEXT_TORCH_INCLUDE ${torch_dir}/include)
set(AOEXT_TORCH_LIBRARY_DIR ${torch_dir}/lib)
find_library(AOEXT_TORCH_LIBRARY torch_cpu PATHS ${AOEXT_TORCH_LIBRARY_DIR} NO_DEFAULT_PATH REQUIRED)
