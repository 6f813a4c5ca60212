//! The kinds of functions that `machine.rs` stages and calls: for each, its sled as a compiler
//! writes it, and the code behind the sled.

use proptest::prelude::*;
use sled_encoders::{Capture, SledKind, x86_64::SLED_BYTES};

/// A custom event's sled as clang writes it for `(size_t size, const char *pointer)`: the second
/// move undoes the first.
const SWAPPED: [u8; 17] = [
    0xeb, 0x0f, 0x57, 0x56, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xfe, 0xe8, 0, 0, 0, 0, 0x5e, 0x5f,
];
/// A typed event's sled for `(const char *pointer, size_t size, size_t type)`: in turn.
const ROTATED: [u8; 22] = [
    0xeb, 0x14, 0x57, 0x56, 0x52, 0x48, 0x89, 0xd7, 0x48, 0x89, 0xfe, 0x48, 0x89, 0xf2, 0xe8, 0, 0,
    0, 0, 0x5a, 0x5e, 0x5f,
];
/// The kind of a function of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    /// An entry sled, then `ret`.
    Entry,
    /// An exit sled.
    Exit,
    /// A tail sled, then a jump to a `ret`.
    Tail,
    /// An entry sled with argument, then `ret`.
    Argument,
    /// The sled of a custom event that gets its size in rdi and its pointer in rsi, then `ret`.
    Custom,
    /// The sled of a typed event that gets pointer, size and type in rdi, rsi and rdx, then `ret`.
    Typed,
    /// An entry sled that records this many registers, then `ret`.
    Arguments(u8),
    /// An exit sled that records rax.
    Result,
    /// A tail sled before `jcc` with this condition, through its stub; both ways end in `ret`.
    Conditional(u8),
}

// === impl Function ===

impl Function {
    pub(crate) const PLAIN: [Self; 4] = [Self::Entry, Self::Exit, Self::Tail, Self::Argument];
    /// The plain functions and those with a payload.
    pub(crate) const EACH: [Self; 7] = [
        Self::Entry,
        Self::Exit,
        Self::Tail,
        Self::Argument,
        Self::Custom,
        Self::Arguments(6),
        Self::Result,
    ];

    /// Any way to begin a call.
    pub(crate) fn entries() -> impl Strategy<Value = Self> {
        prop_oneof![
            6 => Just(Self::Entry),
            1 => Just(Self::Argument),
            1 => Just(Self::Arguments(2)),
        ]
    }

    /// Any way to end a call; `None` for a call that is left by a jump.
    pub(crate) fn exits() -> impl Strategy<Value = Option<Self>> {
        prop_oneof![
            6 => Just(Some(Self::Exit)),
            2 => Just(Some(Self::Tail)),
            1 => Just(Some(Self::Conditional(5))),
            1 => Just(Some(Self::Result)),
            2 => Just(None),
        ]
    }

    /// The kind of its sled.
    pub(crate) fn kind(self) -> SledKind {
        match self {
            Self::Entry | Self::Arguments(_) => SledKind::Entry,
            Self::Exit | Self::Result => SledKind::Exit,
            Self::Tail | Self::Conditional(_) => SledKind::TailExit,
            Self::Argument => SledKind::EntryArgument,
            Self::Custom => SledKind::CustomEvent,
            Self::Typed => SledKind::TypedEvent,
        }
    }

    /// Its place among the kinds, from 0.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::Entry => 0,
            Self::Exit => 1,
            Self::Tail => 2,
            Self::Argument => 3,
            Self::Custom => 4,
            Self::Typed => 5,
            Self::Conditional(condition) => 6 + u64::from(condition),
            Self::Result => 22,
            Self::Arguments(count) => 22 + u64::from(count),
        }
    }

    /// The values that its sled is staged to record.
    pub(crate) fn capture(self) -> Capture {
        match self {
            Self::Arguments(count) => Capture::NONE.with_arguments(count.into()).unwrap(),
            Self::Result => Capture::NONE.with_result(),
            _ => Capture::NONE,
        }
    }

    /// The sled as it is before staging.
    pub(crate) fn sled(self) -> Vec<u8> {
        let mut bytes = vec![0xcc; SLED_BYTES];
        match self.kind() {
            SledKind::Exit => bytes[..2].copy_from_slice(&[0xc3, 0]),
            SledKind::CustomEvent => bytes = SWAPPED.to_vec(),
            SledKind::TypedEvent => bytes = ROTATED.to_vec(),
            _ => bytes[..2].copy_from_slice(&[0xeb, 9]),
        }
        bytes
    }

    /// The code behind the sled.
    pub(crate) fn tail(self) -> Vec<u8> {
        match self {
            Self::Exit | Self::Result => vec![],
            Self::Entry | Self::Argument | Self::Arguments(_) | Self::Custom | Self::Typed => {
                vec![0xc3]
            }
            Self::Tail => vec![0xeb, 0x01, 0xcc, 0xc3],
            Self::Conditional(condition) => vec![0x70 | condition, 0x01, 0xc3, 0xc3],
        }
    }
}
