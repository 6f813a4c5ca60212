//! The instrumentation map (`xray_instr_map`) and the function index (`xray_fn_idx`).
//!
//! An entry of the map is 32 bytes:
//!
//! ```text
//!  +0 sled u64   +8 function u64   +16 kind u8   +17 always u8   +18 version u8   +19 zero
//! ```
//!
//! Versions 0 and 1 (LLVM up to 10) hold addresses, relocated by the dynamic linker where the file can be loaded
//! anywhere. Version 2 holds distances, each from its own field. Objects of several compilers may be linked into one
//! map, so that each entry is read by its own version.
//!
//! A function's id is the number of its group of consecutive entries, from 1. The index says the same again, in one of
//! two layouts which nothing in the file tells apart but their meaning:
//!
//! ```text
//!  up to LLVM 16   +0 address of the first entry u64    +8 address behind the last entry u64
//!  from LLVM 17    +0 distance to the first entry i64   +8 number of entries u64
//! ```
//!
//! The map decides; the index is only compared with it.

use std::collections::HashMap;
use std::ops::Range;

use super::elf::{Elf, Section};
use super::{FileAddr, FunctionIndex, ObjectError, ObjectKind, Sled, SledKind, Warning};

const MAP: &str = "xray_instr_map";
const INDEX: &str = "xray_fn_idx";

const ENTRY: usize = 32;
const INDEX_ENTRY: usize = 16;

/// The decoded map.
#[derive(Debug)]
pub(super) struct Map {
    /// In the map's order.
    pub(super) sleds: Vec<Sled>,
    /// The sleds of each function; the function with id n is the one at n - 1.
    pub(super) groups: Vec<Range<usize>>,
    pub(super) index: FunctionIndex,
    pub(super) warnings: Vec<Warning>,
}

/// Words of a section as the dynamic linker leaves them, but without the load bias.
struct Words<'e, 'a> {
    elf: &'e Elf<'a>,
    section: Section<'a>,
    relocated: HashMap<FileAddr, FileAddr>,
}

// === impl SledKind ===

impl From<u8> for SledKind {
    fn from(kind: u8) -> Self {
        match kind {
            0 => Self::Entry,
            1 => Self::Exit,
            2 => Self::TailExit,
            3 => Self::EntryWithArgument,
            4 => Self::CustomEvent,
            5 => Self::TypedEvent,
            other => Self::Unknown(other),
        }
    }
}

// === impl Map ===

impl Map {
    pub(super) fn read(elf: &Elf<'_>) -> Result<Self, ObjectError> {
        if !elf.has_sections() {
            return Err(ObjectError::NoSectionHeaders);
        }
        let section = elf.section(MAP)?.filter(|section| !section.data.is_empty());
        let section = section.ok_or(ObjectError::NoMap)?;
        let size = section.data.len() as u64;
        if !section.data.len().is_multiple_of(ENTRY) {
            return Err(ObjectError::MapSize {
                size,
                entry: ENTRY as u64,
            });
        }
        if section.address.checked_add(size).is_none() {
            return Err(ObjectError::MapAddress {
                address: section.address,
                size,
            });
        }

        let words = Words::new(elf, section);
        let mut warnings = Vec::new();
        let sleds = read_sleds(&words, &mut warnings)?;
        let groups = group(&sleds);
        if u32::try_from(groups.len()).is_err() {
            return Err(ObjectError::TooManyFunctions);
        }
        warn_about_places(elf, &sleds, &mut warnings);
        let index = compare_index(elf, section.address, &groups, &mut warnings)?;
        Ok(Self {
            sleds,
            groups,
            index,
            warnings,
        })
    }
}

// === impl Words ===

impl<'e, 'a> Words<'e, 'a> {
    fn new(elf: &'e Elf<'a>, section: Section<'a>) -> Self {
        let relocated = elf.relocated(section.address, section.data.len());
        Self {
            elf,
            section,
            relocated,
        }
    }

    /// Where the word at `offset` lies, and its value in the file.
    fn raw(&self, offset: usize) -> Option<(FileAddr, u64)> {
        let place = self.section.address.checked_add(offset as u64)?;
        Some((place, self.elf.word(self.section.data, offset)?))
    }

    fn absolute(&self, offset: usize) -> Option<FileAddr> {
        let (place, value) = self.raw(offset)?;
        Some(
            self.relocated
                .get(&place)
                .copied()
                .unwrap_or(FileAddr(value)),
        )
    }

    fn relative(&self, offset: usize) -> Option<FileAddr> {
        let (place, distance) = self.raw(offset)?;
        Some(place.displaced(distance))
    }
}

fn read_sleds(
    words: &Words<'_, '_>,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Sled>, ObjectError> {
    let data = words.section.data;
    let mut sleds = Vec::with_capacity(data.len() / ENTRY);
    let mut unrelocated = 0;
    for (number, entry) in data.chunks_exact(ENTRY).enumerate() {
        let at = number * ENTRY;
        let version = entry[18];
        let fields = match version {
            0 | 1 => words.absolute(at).zip(words.absolute(at + 8)),
            2 => words.relative(at).zip(words.relative(at + 8)),
            version => {
                return Err(ObjectError::UnknownVersion {
                    entry: number,
                    version,
                });
            }
        };
        let (address, function) =
            fields.expect("the section was checked to lie in the address space");
        if version < 2 && words.elf.kind != ObjectKind::Executable && address == FileAddr(0) {
            unrelocated += 1;
        }
        sleds.push(Sled {
            address,
            function,
            kind: entry[16].into(),
            always_instrument: entry[17] != 0,
            version,
        });
    }
    if unrelocated > 0 {
        warnings.push(Warning::Unrelocated { count: unrelocated });
    }
    Ok(sleds)
}

/// Consecutive sleds of one function: LLVM's rule for ids.
fn group(sleds: &[Sled]) -> Vec<Range<usize>> {
    let mut start = 0;
    sleds
        .chunk_by(|one, next| one.function == next.function)
        .map(|group| {
            let range = start..start + group.len();
            start = range.end;
            range
        })
        .collect()
}

fn warn_about_places(elf: &Elf<'_>, sleds: &[Sled], warnings: &mut Vec<Warning>) {
    let code: Vec<_> = elf
        .segments
        .iter()
        .filter(|segment| segment.executable)
        .collect();
    // Nearly all files have one such segment; the bound keeps a made-up file from costing segments times sleds.
    let code = &code[..code.len().min(16)];
    let mut outside = sleds
        .iter()
        .filter(|sled| !code.iter().any(|segment| segment.contains(sled.address)));
    if let Some(first) = outside.next() {
        warnings.push(Warning::OutsideCode {
            count: 1 + outside.count(),
            first: first.address,
        });
    }
    let mut unknown = sleds.iter().filter_map(|sled| match sled.kind {
        SledKind::Unknown(kind) => Some((sled.address, kind)),
        _ => None,
    });
    if let Some((first, kind)) = unknown.next() {
        warnings.push(Warning::UnknownKind {
            count: 1 + unknown.count(),
            first,
            kind,
        });
    }
}

fn compare_index(
    elf: &Elf<'_>,
    map: FileAddr,
    groups: &[Range<usize>],
    warnings: &mut Vec<Warning>,
) -> Result<FunctionIndex, ObjectError> {
    let Some(section) = elf
        .section(INDEX)?
        .filter(|section| !section.data.is_empty())
    else {
        return Ok(FunctionIndex::Absent);
    };
    let words = Words::new(elf, section);
    let entries = section.data.len() / INDEX_ENTRY;
    let agrees = |layout: FunctionIndex, number: usize| {
        let at = number * INDEX_ENTRY;
        let group = groups.get(number)?;
        let begin = map.checked_add((group.start * ENTRY) as u64)?;
        let end = map.checked_add((group.end * ENTRY) as u64)?;
        Some(match layout {
            FunctionIndex::Addresses => {
                words.absolute(at)? == begin && words.absolute(at + 8)? == end
            }
            FunctionIndex::Distances => {
                words.relative(at)? == begin && words.raw(at + 8)?.1 == group.len() as u64
            }
            FunctionIndex::Absent | FunctionIndex::Disagrees => false,
        })
    };
    let first_difference = |layout| {
        (0..entries.max(groups.len())).find(|&number| agrees(layout, number) != Some(true))
    };
    let whole = section.data.len().is_multiple_of(INDEX_ENTRY);
    let [distances, addresses] = [FunctionIndex::Distances, FunctionIndex::Addresses]
        .map(|layout| first_difference(layout).map_or(Ok(layout), Err));
    Ok(
        match distances.or_else(|one| addresses.map_err(|other| one.max(other))) {
            Ok(layout) if whole => layout,
            disagreement => {
                warnings.push(Warning::IndexDisagrees {
                    entries,
                    functions: groups.len(),
                    first: disagreement.err().unwrap_or(entries),
                });
                FunctionIndex::Disagrees
            }
        },
    )
}
