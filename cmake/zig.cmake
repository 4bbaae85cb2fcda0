# What toolchain files say of zig, whose programs are commands of one.
macro(aoext_zig target)
  set(CMAKE_CXX_COMPILER ${AOEXT_ZIG} c++ -target ${target})
  set(CMAKE_CXX_ARCHIVE_CREATE "${AOEXT_ZIG} ar qc <TARGET> <OBJECTS>")
  set(CMAKE_CXX_ARCHIVE_APPEND "${AOEXT_ZIG} ar q <TARGET> <OBJECTS>")
  set(CMAKE_CXX_ARCHIVE_FINISH "${AOEXT_ZIG} ranlib <TARGET>")
endmacro()
