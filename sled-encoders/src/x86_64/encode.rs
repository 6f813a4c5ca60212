//! The bytes of a staged sled, and the byte that switches it. Writing them into a process is not
//! done here.

use crate::{EncodeError, SledKind};

/// Bytes of a function's sled, from its address on.
pub const SLED_BYTES: usize = 11;
/// Bytes of the longest sled of any kind.
pub const MAX_SLED_BYTES: usize = 22;

/// Bytes of a sled of `kind`.
pub const fn sled_bytes(kind: SledKind) -> usize {
    match kind {
        SledKind::Entry | SledKind::Exit | SledKind::TailExit | SledKind::EntryArgument => {
            SLED_BYTES
        }
        SledKind::CustomEvent => 17,
        SledKind::TypedEvent | SledKind::CustomEventV0 => 22,
    }
}

/// The write that stages a sled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staging {
    /// The place of the write, relative to the sled's address.
    pub offset: u8,
    bytes: [u8; 9],
    length: u8,
}

/// The byte that switches a staged sled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// The place of the byte, relative to the sled's address.
    pub offset: u8,
    /// Its value when off, as compiled.
    pub off: u8,
    /// Its value when on.
    pub on: u8,
}

// === impl Staging ===

impl Staging {
    /// The bytes to write.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Turns the call into a jump, which leaves the stack alone.
    pub(super) const fn make_jump(&mut self) {
        self.bytes[0] = 0xe9;
    }
}

/// The write that stages a sled of `kind` at `address` to call `trampoline`. A sled of an event is
/// staged to jump to its stub, whose address `trampoline` is then.
///
/// # Errors
/// [`EncodeError::OutOfReach`] if a call at the sled cannot reach the trampoline.
pub fn stage(kind: SledKind, address: u64, trampoline: u64) -> Result<Staging, EncodeError> {
    let relative = reach(call_site(kind, address), trampoline)?.to_le_bytes();
    let [a, b, c, d] = relative;
    Ok(match kind {
        SledKind::Exit => Staging {
            offset: 1,
            bytes: [a, b, c, d, 0xc3, 0, 0, 0, 0],
            length: 5,
        },
        SledKind::Entry | SledKind::EntryArgument | SledKind::TailExit => Staging {
            offset: 2,
            bytes: [0xe8, a, b, c, d, 0x0f, 0x1f, 0x40, 0x00],
            length: 9,
        },
        SledKind::CustomEvent | SledKind::TypedEvent | SledKind::CustomEventV0 => Staging {
            offset: 2,
            bytes: [0xe9, a, b, c, d, 0, 0, 0, 0],
            length: 5,
        },
    })
}

/// The byte that switches a sled of `kind`.
pub const fn switch(kind: SledKind) -> Switch {
    match kind {
        // test $9,%al: flags are dead at a function's first instruction.
        SledKind::Entry | SledKind::EntryArgument => Switch {
            offset: 0,
            off: 0xeb,
            on: 0xa8,
        },
        // call: the return address then points at the staged ret.
        SledKind::Exit => Switch {
            offset: 0,
            off: 0xc3,
            on: 0xe8,
        },
        // jmp +0: touches no flag.
        SledKind::TailExit => Switch {
            offset: 1,
            off: 0x09,
            on: 0x00,
        },
        SledKind::CustomEvent => Switch {
            offset: 1,
            off: 0x0f,
            on: 0x00,
        },
        SledKind::TypedEvent | SledKind::CustomEventV0 => Switch {
            offset: 1,
            off: 0x14,
            on: 0x00,
        },
    }
}

/// The return address of the call in a sled that is on, or the address behind its jump to a stub.
/// It names the sled in the ring. Always odd, since sleds are 2-byte aligned.
pub const fn call_site(kind: SledKind, address: u64) -> u64 {
    match kind {
        SledKind::Exit => address.wrapping_add(5),
        SledKind::Entry
        | SledKind::EntryArgument
        | SledKind::TailExit
        | SledKind::CustomEvent
        | SledKind::TypedEvent
        | SledKind::CustomEventV0 => address.wrapping_add(7),
    }
}

/// The rel32 of a call or jump that ends at `next` and leads to `target`.
pub(super) fn reach(next: u64, target: u64) -> Result<i32, EncodeError> {
    i32::try_from(target.wrapping_sub(next).cast_signed()).map_err(|_| EncodeError::OutOfReach {
        from: next,
        to: target,
    })
}
