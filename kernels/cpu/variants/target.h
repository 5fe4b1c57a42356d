/* TARGETED(features): the rest of the file is compiled for CPUs that have them. */
#define PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define TARGETED(features) PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define TARGETED_END PRAGMA(clang attribute pop)
#else
#define TARGETED(features) PRAGMA(GCC target(features))
#define TARGETED_END
#endif
