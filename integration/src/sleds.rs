//! The instrumentation map of a file, read by a second, simpler reader. The file must be 64-bit and
//! little-endian, and must have section headers. Tests derive from it the sleds that a program must
//! have, before any tracer looks at it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use goblin::elf::Elf;
use goblin::elf::header::ELFCLASS64;

const ENTRY_SIZE: usize = 32;

/// The kinds of sleds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SledKind {
    /// The first instruction of a function.
    Entry,
    /// A place of a `ret`.
    Exit,
    /// The place before the jump of a tail call.
    TailExit,
    /// An entry whose first argument is recorded.
    EntryArgument,
    /// `__xray_customevent`.
    CustomEvent,
    /// `__xray_typedevent`.
    TypedEvent,
}

impl SledKind {
    /// Bytes of a sled, from its beginning, that no thread executes while it is off: the bytes
    /// behind the jump or the return.
    #[must_use]
    pub const fn dead(self) -> std::ops::Range<u64> {
        match self {
            Self::Exit => 1..11,
            Self::Entry | Self::EntryArgument | Self::TailExit => 2..11,
            Self::CustomEvent | Self::TypedEvent => 2..17,
        }
    }
}

/// One sled, by addresses as in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sled {
    /// The address of the sled.
    pub address: u64,
    /// The address of its function.
    pub function: u64,
    /// The kind of the sled.
    pub kind: SledKind,
    /// The layout of its map entry: 0 and 1 absolute, 2 relative to itself.
    pub version: u8,
}

/// All sleds of the program or library `file`, in map order; empty if it has none.
///
/// # Errors
/// The file cannot be read or is not as a compiler writes it.
pub fn sleds_of(file: &Path) -> Result<Vec<Sled>> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let elf = Elf::parse(&bytes).with_context(|| format!("cannot parse {}", file.display()))?;
    let section = elf
        .section_headers
        .iter()
        .find(|header| elf.shdr_strtab.get_at(header.sh_name) == Some("xray_instr_map"));
    let Some(section) = section else {
        return Ok(Vec::new());
    };
    ensure!(
        elf.header.e_ident[4] == ELFCLASS64,
        "{}: not a 64-bit file",
        file.display()
    );
    let range = section.file_range().context("the map has no bytes")?;
    let map = bytes.get(range).context("the map lies outside the file")?;
    ensure!(
        map.len() % ENTRY_SIZE == 0,
        "the map's size {} is no multiple of 32",
        map.len()
    );

    // The linker leaves absolute fields of a position-independent file to the loader.
    let relocated = |address: u64, stored: u64| {
        let addend = elf
            .dynrelas
            .iter()
            .find(|relocation| relocation.r_offset == address)
            .and_then(|relocation| relocation.r_addend);
        addend.map_or(stored, i64::cast_unsigned)
    };
    let mut sleds = Vec::with_capacity(map.len() / ENTRY_SIZE);
    let mut at = section.sh_addr;
    for entry in map.chunks_exact(ENTRY_SIZE) {
        let word = |offset: usize| {
            let field = entry[offset..offset + 8]
                .try_into()
                .expect("the slice is 8 bytes long");
            u64::from_le_bytes(field)
        };
        let version = entry[18];
        let (address, function) = if version >= 2 {
            (at.wrapping_add(word(0)), (at + 8).wrapping_add(word(8)))
        } else {
            (relocated(at, word(0)), relocated(at + 8, word(8)))
        };
        let kind = match entry[16] {
            0 => SledKind::Entry,
            1 => SledKind::Exit,
            2 => SledKind::TailExit,
            3 => SledKind::EntryArgument,
            4 => SledKind::CustomEvent,
            5 => SledKind::TypedEvent,
            other => bail!("a sled of kind {other} at {address:#x}"),
        };
        sleds.push(Sled {
            address,
            function,
            kind,
            version,
        });
        at += ENTRY_SIZE as u64;
    }
    Ok(sleds)
}
