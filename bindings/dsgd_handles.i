/* DSGD_EACH_OUTPUT_HANDLE(MACRO) calls MACRO(type, argument) for every handle that a function of dsgd.h gives out through
 * a last-but-one argument `type **argument`, so that a language attaches its typemap to all of them at once. The error
 * has its own typemap in each language. */
%define DSGD_EACH_OUTPUT_HANDLE(MACRO)
MACRO(dsgd_session, session)
MACRO(dsgd_parameter, parameter)
MACRO(dsgd_replica, replica)
MACRO(dsgd_op, op)
MACRO(dsgd_memory, memory)
MACRO(dsgd_object, object)
MACRO(dsgd_shard, shard)
MACRO(dsgd_log_record, record)
MACRO(dsgd_head, head)
%enddef
