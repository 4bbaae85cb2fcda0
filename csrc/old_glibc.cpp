// What this compiler's libstdc++ leaves to a newer one than stands beside an old glibc (cmake/glibc.cmake). The version script
// keeps all of it inside the library.
#include <cstdlib>
#include <new>
#include <sstream>

// An inline function of libstdc++ 12 asks glibc 2.32 by this whether the process has one thread; "no" is always right.
extern "C" char __libc_single_threaded;
char __libc_single_threaded = 0;

namespace std {

// GLIBCXX_3.4.29. What a new expression of a negative or too large length throws.
void __throw_bad_array_new_length() { throw bad_array_new_length(); }

// GLIBCXX_3.4.29: C++20 takes the text out of a stream by these.
template string __cxx11::basic_stringbuf<char>::str() const&;
template string __cxx11::basic_stringbuf<char>::str() &&;

// GLIBCXX_3.4.26: default constructors.
template __cxx11::basic_ostringstream<char>::basic_ostringstream();
template __cxx11::basic_stringstream<char>::basic_stringstream();

}  // namespace std
