/* The part of the SWIG interface that all languages share: which declarations of dsgd.h SWIG wraps, and how. It has no
 * %module and no typemaps of a language. java/, go/ and python/ each have an interface file that declares its module,
 * includes <dsgd/dsgd.h> in its %{ %} block, gives its typemaps, and then includes this file.
 *
 * A language's own file has to map these names:
 *   dsgd_error **error                  every fallible function's last argument
 *   dsgd_T **t                          handles given out; dsgd_handles.i applies a macro to each of them
 *   (void *data, size_t nbytes)         and its relatives: buffers
 *   (const dsgd_op_options *options)
 *   (const size_t *element_counts), (const int64_t *shape, size_t ndim), (int64_t *indices, size_t max, size_t *count)
 */

/* The stock stdint.i takes int64_t for `long long` unless told, and the wrapper then does not compile. */
#ifndef SWIGWORDSIZE64
#define SWIGWORDSIZE64
#endif
%include <stdint.i>
#ifdef SWIGJAVA
/* With int64_t a `long`, Java would get a 32-bit int, and a BigInteger for uint64_t. */
%apply long long { int64_t, uint64_t, size_t };
#endif

/* Handles are never defined here, so that they stay plain pointers, without constructor, destructor or proxy: lifetimes
 * are the hand-written layer's.
 * The structs that cross the boundary are made by their init function, and are read only. */
%{
#include <stdlib.h>
%}
%define DSGD_SIZED_STRUCT(type)
%ignore type::struct_size;
%ignore type ## _init;
%nodefaultctor type;
%nodefaultdtor type;
%extend type {
  type() {
    type *self = (type *)calloc(1, sizeof *self);
    if (self != NULL) type ## _init(self, sizeof *self);
    return self;
  }
  ~type() { free($self); }
}
%enddef
DSGD_SIZED_STRUCT(dsgd_step_result)
DSGD_SIZED_STRUCT(dsgd_config_key)
DSGD_SIZED_STRUCT(dsgd_session_info)

/* C callbacks: no binding has them. Logs are read with dsgd_log_poll. */
%ignore dsgd_log_function;
%ignore dsgd_config_log_hook;

/* Plug-ins, which are tables of C functions, are C's. */
%rename("$ignore", regexmatch$name="^(dsgd_(algorithm|schedule|transfer|placement)|dsgd_strategy(_init|_register|_flags)?$)") "";
%rename("$ignore", regexmatch$name="^DSGD_(PLUGIN|TRANSFER|STRATEGY)_", %$isenumitem) "";
%ignore DSGD_PLUGIN_VERSION;

#ifndef SWIGGO
/* The typemap of dsgd_error **error reads errors. */
%rename("$ignore", regexmatch$name="^dsgd_error_") "";
#endif

/* Options of operations are made by each language's typemap of (const dsgd_op_options *options). */
%ignore dsgd_op_options;
%ignore dsgd_op_options_init;

%ignore DSGD_API;
%ignore DSGD_VERSION; /* dsgd_version() is that of the library in use */
%ignore DSGD_DSGD_H_;

#ifdef SWIGGO
%warnfilter(314) dsgd_config_key::type;  /* Go's keywords: Xtype and Xrange there */
%warnfilter(314) dsgd_config_key::range;
#endif
%immutable;
%include <dsgd/dsgd.h>
%mutable;
