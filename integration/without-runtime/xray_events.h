// Custom and typed XRay events in programs that do not carry LLVM's XRay runtime.
//
// A function compiled by clang with -fxray-instrument may say something to whoever traces it:
//
//     xray_custom_event("cache miss", 10);
//     xray_typed_event(7, &request, sizeof request);
//
// While nobody traces, that is a jump over fifteen bytes. With another compiler, or without -fxray-instrument, it is nothing at all.
// Link xray_events.c as well; where LLVM's runtime is linked, too, its functions are taken.
#pragma once

#include <stddef.h>

#if defined(__clang__) && defined(__has_builtin)
#if __has_builtin(__xray_customevent) && __has_builtin(__xray_typedevent)
#define XRAY_EVENTS 1
#endif
#endif

#ifdef XRAY_EVENTS
#define xray_custom_event(pointer, size) __xray_customevent((pointer), (size))
#define xray_typed_event(type, pointer, size) __xray_typedevent((type), (pointer), (size))
#else
#define xray_custom_event(pointer, size) ((void)(pointer), (void)(size))
#define xray_typed_event(type, pointer, size) ((void)(type), (void)(pointer), (void)(size))
#endif
