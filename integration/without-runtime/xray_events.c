// What an event's sled calls as the compiler leaves it. xrayd sends the sled elsewhere, and while it is off nothing is called: these two are
// there so that the program links. Weak: where LLVM's runtime is linked as well, its own are taken.

__attribute__((weak, visibility("hidden"))) void __xray_CustomEvent(void) {}
__attribute__((weak, visibility("hidden"))) void __xray_TypedEvent(void) {}
