/* SPDX-License-Identifier: GPL-2.0 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM cow

#if !defined(_TRACE_COW_H) || defined(TRACE_HEADER_MULTI_READ)
#define _TRACE_COW_H

#include <linux/tracepoint.h>

#define COW_ACTION					\
	EM(COW_ACTION_REUSE,	"reuse")		\
	EM(COW_ACTION_COPY,	"copy")			\
	EMe(COW_ACTION_FALLBACK,	"fallback")

#define COW_REASON					\
	EM(COW_REASON_BLOCK,	"block")		\
	EM(COW_REASON_RUN,	"run")			\
	EM(COW_REASON_DENSE,	"dense")		\
	EM(COW_REASON_ALWAYS,	"always")		\
	EM(COW_REASON_LAST,	"last")			\
	EM(COW_REASON_MEMORY,	"memory")		\
	EM(COW_REASON_POISON,	"poison")		\
	EMe(COW_REASON_RACE,	"race")

#undef EM
#undef EMe
#define EM(a, b)	TRACE_DEFINE_ENUM(a);
#define EMe(a, b)	TRACE_DEFINE_ENUM(a);

COW_ACTION
COW_REASON

#undef EM
#undef EMe
#define EM(a, b)	{ a, b },
#define EMe(a, b)	{ a, b }

/**
 * cow_fault - called when a write fault may handle more than the page that faulted
 *
 * @address:	where the fault was
 * @order:	order of the folio that was mapped there
 * @action:	what was done
 * @reason:	what decided about the number of pages
 * @nr_pages:	the number of pages that it was done to
 *
 * Faults on small folios are not traced.
 */
TRACE_EVENT(cow_fault,

	TP_PROTO(unsigned long address, unsigned int order, unsigned int action,
		 unsigned int reason, unsigned int nr_pages),

	TP_ARGS(address, order, action, reason, nr_pages),

	TP_STRUCT__entry(
		__field(unsigned long, address)
		__field(unsigned int, order)
		__field(unsigned int, action)
		__field(unsigned int, reason)
		__field(unsigned int, nr_pages)
	),

	TP_fast_assign(
		__entry->address	= address;
		__entry->order		= order;
		__entry->action		= action;
		__entry->reason		= reason;
		__entry->nr_pages	= nr_pages;
	),

	TP_printk("address=0x%lx order=%u action=%s reason=%s nr_pages=%u",
		  __entry->address, __entry->order,
		  __print_symbolic(__entry->action, COW_ACTION),
		  __print_symbolic(__entry->reason, COW_REASON),
		  __entry->nr_pages)
);

#endif /* _TRACE_COW_H */

/* This part must be outside protection */
#include <trace/define_trace.h>
