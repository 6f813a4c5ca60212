//! What can go wrong when machine code is made.

/// Machine code that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// A call or jump reaches 2 GiB at most.
    #[error("{from:#x} is out of reach of {to:#x}: more than 2 GiB apart")]
    OutOfReach {
        /// Where the call stands.
        from: u64,
        /// Where it should lead.
        to: u64,
    },
    /// AArch64 has instructions at multiples of four.
    #[error("no instruction can stand at {address:#x}: not a multiple of 4")]
    Unaligned {
        /// The address.
        address: u64,
    },
    /// The assembler refused an instruction.
    #[error("cannot assemble the trampolines: {0}")]
    Assembler(String),
}
