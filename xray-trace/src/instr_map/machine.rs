//! Processors with sleds in LLVM, and the meaning of their relocations. The relocations are applied
//! in `elf`.

use std::fmt;

use goblin::elf::header;

/// The processor an object is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Machine {
    /// x86-64, also with 32-bit addresses (x32).
    X86_64,
    /// AArch64, little or big endian.
    Aarch64,
    /// 32-bit ARM.
    Arm,
    /// 64-bit PowerPC.
    Ppc64,
    /// MIPS of any size and byte order.
    Mips,
    /// LoongArch.
    LoongArch,
    /// RISC-V of any size.
    RiscV,
    /// SystemZ.
    S390,
    /// Hexagon.
    Hexagon,
    /// Another processor, by its `EM_` number.
    Other(u16),
}

/// The effect of a relocation on a word. S is the symbol's address, A the addend, P the word's own
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relocation {
    /// S + A.
    Absolute,
    /// S + A − P.
    Distance,
    /// A plus the load bias, and S if there is a symbol.
    Base,
    /// The word plus S + A.
    Add,
    /// The word minus S + A.
    Subtract,
}

// === impl Machine ===

impl Machine {
    /// The meaning of this relocation of a whole word; `None` if it cannot occur in an
    /// instrumentation map. Words have eight bytes in `wide` files, and four in others.
    pub(super) fn relocation(self, wide: bool, number: u32) -> Option<Relocation> {
        use Relocation::{Absolute, Add, Base, Distance, Subtract};
        // Zero is R_*_NONE everywhere. The numbers are from
        // llvm/include/llvm/BinaryFormat/ELFRelocs (LLVM 19).
        let numbers = match (self, wide) {
            (Self::X86_64, true) => [1, 24, 8, 0, 0],
            (Self::X86_64, false) => [10, 2, 8, 0, 0],
            (Self::Aarch64, true) => [257, 260, 1027, 0, 0],
            (Self::Arm, false) => [2, 3, 23, 0, 0],
            (Self::Ppc64, true) => [38, 44, 22, 0, 0],
            // Up to three types in one number, the first in the low byte: PC32 and 64, REL32 and
            // 64.
            (Self::Mips, true) => [18, 248 | 18 << 8, 3 | 18 << 8, 0, 0],
            (Self::Mips, false) => [2, 248, 3, 0, 0],
            (Self::LoongArch, true) => [2, 109, 3, 51, 56],
            (Self::LoongArch, false) => [1, 99, 3, 50, 55],
            (Self::RiscV, true) => [2, 0, 3, 36, 40],
            (Self::RiscV, false) => [1, 57, 3, 35, 39],
            (Self::S390, true) => [22, 23, 12, 0, 0],
            (Self::Hexagon, false) => [6, 31, 35, 0, 0],
            _ => return None,
        };
        let meanings = [Absolute, Distance, Base, Add, Subtract];
        let found = numbers.into_iter().zip(meanings);
        found
            .filter(|(known, _)| *known != 0)
            .find_map(|(known, meaning)| (known == number).then_some(meaning))
    }
}

impl From<u16> for Machine {
    fn from(number: u16) -> Self {
        match number {
            header::EM_X86_64 => Self::X86_64,
            header::EM_AARCH64 => Self::Aarch64,
            header::EM_ARM => Self::Arm,
            header::EM_PPC64 => Self::Ppc64,
            header::EM_MIPS => Self::Mips,
            header::EM_LOONGARCH => Self::LoongArch,
            header::EM_RISCV => Self::RiscV,
            header::EM_S390 => Self::S390,
            header::EM_QDSP6 => Self::Hexagon,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::X86_64 => "x86-64",
            Self::Aarch64 => "AArch64",
            Self::Arm => "ARM",
            Self::Ppc64 => "PowerPC",
            Self::Mips => "MIPS",
            Self::LoongArch => "LoongArch",
            Self::RiscV => "RISC-V",
            Self::S390 => "SystemZ",
            Self::Hexagon => "Hexagon",
            Self::Other(number) => return write!(f, "machine {number}"),
        })
    }
}
