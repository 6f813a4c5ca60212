// The functions that the sleds of user events call as compiled, and the names of event types, for
// programs without LLVM's runtime. The definitions are weak: if that runtime is linked as well, its
// own functions are used.
#include "xray_events.h"

// These two are never called. A sled that is off calls nothing, and xrayd redirects a sled that is
// on. They exist so that the program links.
__attribute__((weak, visibility("hidden"))) void __xray_CustomEvent(void) {}
__attribute__((weak, visibility("hidden"))) void __xray_TypedEvent(void) {}

#ifdef __clang__
#define NO_SLEDS xray_never_instrument
#else
#define NO_SLEDS unused
#endif

#define CAPACITY 1024
#define FULL UINT16_MAX

// xrayd reads this table. It finds the table by its section, which a stripped program has as well.
// The last byte of the magic is the version of this layout. All entries behind the first free one
// are free.
__attribute__((weak, section("xray_event_types"))) struct {
    char magic[8];
    uint64_t capacity;
    const char *names[CAPACITY];
} __xray_event_type_table = {{'x', 'r', 'a', 'y', 't', 'y', 'p', 1}, CAPACITY, {0}};

// Takes no lock and allocates no memory, so a signal handler may call it.
__attribute__((weak, NO_SLEDS)) uint16_t __xray_register_event_type(const char *name) {
    for (uint16_t number = 0; number < CAPACITY; number++) {
        const char **place = &__xray_event_type_table.names[number];
        const char *there = NULL;
        if (__atomic_compare_exchange_n(place, &there, name, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) || there == name) return number;
    }
    return FULL;
}
