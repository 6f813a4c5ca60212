//! Errors of making machine code. Reading a sled has none: any bytes are a state.

/// Machine code that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A call or jump to a place more than 2 GiB away.
    #[error("{from:#x} is out of reach of {to:#x}: more than 2 GiB apart")]
    OutOfReach {
        /// The address of the call.
        from: u64,
        /// The address that it should lead to.
        to: u64,
    },
    /// An AArch64 instruction at an address that is no multiple of four.
    #[error("no instruction can be at {address:#x}: not a multiple of 4")]
    Unaligned {
        /// The address.
        address: u64,
    },
    /// The assembler refused an instruction.
    #[error("cannot assemble the trampolines: {0}")]
    Assembler(String),
}
