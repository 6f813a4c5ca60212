// Custom and typed XRay events in programs without LLVM's XRay runtime.
//
// A function that clang compiles with -fxray-instrument can emit user events for its tracer:
//
//     xray_custom_event("cache miss", 10);
//     xray_typed_event(7, &request, sizeof request);
//
// While the program is not traced, a custom event is a jump over 15 bytes, and a typed event a jump
// over 20 bytes. With another compiler, or without -fxray-instrument, it is nothing at all. Link
// xray_events.c as well. If LLVM's runtime is linked, too, its functions are used.
//
// A type can have a name, which traces show instead of its number:
//
//     static const char request_type[] = "request";
//     xray_typed_event(__xray_register_event_type(request_type), &request, sizeof request);
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Returns the number of the type with this name, from 0. The same address gets the same number, so
// a program may call this before each event. The text must stay at its address. The first 1024
// types have a number of their own. All others have the number 65535 and no name.
uint16_t __xray_register_event_type(const char *name);

#ifdef __cplusplus
}
#endif

// Describes the data of a type's events, for tracers. Stands outside of functions:
//
//     XRAY_EVENT_FORMAT("request=id:u64,price:f64,symbol:str16");
//
// The text has the syntax of xrayctl's option --event-format. Tools read it from the section of the
// file, so it costs the program nothing.
#define XRAY_EVENT_FORMAT(text) XRAY_EVENT_FORMAT_NUMBERED(text, __COUNTER__)
#define XRAY_EVENT_FORMAT_NUMBERED(text, number) XRAY_EVENT_FORMAT_NAMED(text, number)
#define XRAY_EVENT_FORMAT_NAMED(text, number) \
    static const char xray_event_format_##number[] XRAY_EVENT_FORMAT_KEPT = text
#if defined(__has_attribute)
#if __has_attribute(retain)
#define XRAY_EVENT_FORMAT_KEPT __attribute__((used, retain, section("xray_event_formats")))
#endif
#endif
#ifndef XRAY_EVENT_FORMAT_KEPT
#define XRAY_EVENT_FORMAT_KEPT __attribute__((used, section("xray_event_formats")))
#endif

#if defined(__clang__) && defined(__has_builtin)
#if __has_builtin(__xray_customevent) && __has_builtin(__xray_typedevent)
#define XRAY_EVENTS 1
#endif
#endif

#ifdef XRAY_EVENTS
// clang takes the builtins for functions that read no memory, and leaves out stores to bytes that
// only an event reads. With this it keeps them. It costs no instruction.
static inline const char *xray_event_bytes(const void *pointer) {
    __asm__ volatile("" : "+r"(pointer) : : "memory");
    return (const char *)pointer;
}

#define xray_custom_event(pointer, size) __xray_customevent(xray_event_bytes(pointer), (size))
#define xray_typed_event(type, pointer, size) __xray_typedevent((type), xray_event_bytes(pointer), (size))
#else
#define xray_custom_event(pointer, size) ((void)(pointer), (void)(size))
#define xray_typed_event(type, pointer, size) ((void)(type), (void)(pointer), (void)(size))
#endif
