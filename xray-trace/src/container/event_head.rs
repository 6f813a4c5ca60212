//! The numbers in the head of a packed event and in the byte after an extended head. Encoder and
//! decoder share them.
//!
//! An event begins with a head of 1, 2, 3 or 5 bytes, a little-endian number:
//!
//! ```text
//!  bits 0-1  kind: 0 exit of the innermost open call, 1 entry as expected,
//!            2 entry of a named function, 3 see the next byte
//!  bits 2-3  length of the head: 0 one byte, 1 two, 2 three, 3 five
//!  bits 4-   ticks since the event before: 4, 12, 20 or 36 bits
//! ```
//!
//! The fields of its kind follow the head. `docs/trace-format.md` describes every byte.

/// The lowest two bits of an event head.
pub(super) mod head_kind {
    pub(in crate::container) const EXIT_INNERMOST: u64 = 0;
    pub(in crate::container) const ENTER_EXPECTED: u64 = 1;
    pub(in crate::container) const ENTER_NAMED: u64 = 2;
    pub(in crate::container) const EXTENDED: u64 = 3;
}

/// The byte after an extended head: a kind in bits 0-1, two flags, and zeros.
pub(super) mod extended {
    pub(in crate::container) const ENTER: u8 = 0;
    pub(in crate::container) const EXIT: u8 = 1;
    pub(in crate::container) const TAIL_EXIT: u8 = 2;
    /// The function's id follows this byte.
    pub(in crate::container) const NAMED: u8 = 4;
    /// The lowest bit of the number of values, which follow the function.
    pub(in crate::container) const VALUES_SHIFT: u32 = 3;
    pub(in crate::container) const VALUES: u8 = 7 << VALUES_SHIFT;
    /// Events were lost. Their number follows.
    pub(in crate::container) const LOST: u8 = 3;
    /// A custom or typed event of the program. Its kind, its length and its bytes follow.
    pub(in crate::container) const DATA: u8 = 0x0b;
    /// The same with its function. The kind, the function (1 more than its id; 0 if the function is
    /// not known), the number of bytes that the program announced, the number of bytes that the
    /// trace has, and these bytes follow.
    pub(in crate::container) const SAID: u8 = 0x13;
    /// Calls ended without an exit. Their number follows.
    pub(in crate::container) const UNWOUND: u8 = 0x17;
    /// The next event is an exit of a call that is not open.
    pub(in crate::container) const UNMATCHED_EXIT: u8 = 0x1b;
    /// The thread runs on another processor. The processor's number follows.
    pub(in crate::container) const CPU: u8 = 0x0f;
    /// No event: the ticks that do not fit the next head follow.
    pub(in crate::container) const ADVANCE: u8 = 7;
}

/// The number of bits for ticks in the longest head.
pub(super) const DELTA_BITS: u32 = 36;

/// The length of a head, by its length code.
pub(super) const HEAD_LEN: [usize; 4] = [1, 2, 3, 5];
