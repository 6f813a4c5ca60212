// What an event's sled calls as the compiler leaves it, and the names of event types, for programs without LLVM's runtime. Weak: where that runtime
// is linked as well, its own functions are taken.
#include "xray_events.h"

// xrayd sends the sled elsewhere, and while it is off nothing is called: these two are there so that the program links.
__attribute__((weak, visibility("hidden"))) void __xray_CustomEvent(void) {}
__attribute__((weak, visibility("hidden"))) void __xray_TypedEvent(void) {}

#ifdef __clang__
#define NO_SLEDS xray_never_instrument
#else
#define NO_SLEDS unused
#endif

#define CAPACITY 1024
#define FULL UINT16_MAX

// Read by xrayd, which finds it by its section: that is there in a stripped program, too. The last byte of the magic is the version of this
// layout; all places behind the first free one are free.
__attribute__((weak, section("xray_event_types"))) struct {
    char magic[8];
    uint64_t capacity;
    const char *names[CAPACITY];
} __xray_event_type_table = {{'x', 'r', 'a', 'y', 't', 'y', 'p', 1}, CAPACITY, {0}};

// Takes no lock and no memory, so a signal handler may call it, too.
__attribute__((weak, NO_SLEDS)) uint16_t __xray_register_event_type(const char *name) {
    for (uint16_t number = 0; number < CAPACITY; number++) {
        const char **place = &__xray_event_type_table.names[number];
        const char *there = NULL;
        if (__atomic_compare_exchange_n(place, &there, name, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE) || there == name) return number;
    }
    return FULL;
}
