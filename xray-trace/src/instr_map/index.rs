//! Reads the instrumentation map (`xray_instr_map`), and compares the function index
//! (`xray_fn_idx`) with it. The sections come from `elf` and `macho`.
//!
//! An entry of the map is four words long, 32 bytes or 16:
//!
//! ```text
//!  +0 sled u64   +8 function u64   +16 kind u8   +17 always u8   +18 version u8   +19 zero
//!  +0 sled u32   +4 function u32   +8 kind u8    +9 always u8    +10 version u8   +11 zero
//! ```
//!
//! Versions 0 and 1 (LLVM up to 10) hold addresses. The dynamic linker relocates them if the file
//! can be loaded at any address. Version 2 holds distances, each from its own field. Objects of
//! several compilers may be linked into one map, so each entry is read by its own version. A
//! relocatable file has one section for each function, and relocations instead of values.
//!
//! A function's id is the number of its group of consecutive entries, from 1. The index contains
//! the same groups, in one of two layouts. The file has no mark for the layout; only the meaning
//! tells them apart:
//!
//! ```text
//!  up to LLVM 16   address of the first entry    address behind the last entry    two words
//!  from LLVM 17    distance to the first entry   number of entries                two words
//! ```
//!
//! The map decides. The index is only compared with it.

use std::ops::Range;

use super::file::{MapSections, ObjectFile, Segment};
use super::section_addr::SectionAddr;
use super::words::Words;
use super::{FileAddr, FunctionIndex, ObjectError, ObjectKind, Sled, SledKind, Warning};

/// Bytes of the shortest sled, an entry sled on x86-64.
const SHORTEST_SLED: u64 = 11;
/// The number of sleds that every file may have, however little code it has.
const SPARE_SLEDS: u64 = 1 << 16;

/// The decoded map.
#[derive(Debug)]
pub(super) struct Map {
    /// In the map's order.
    pub(super) sleds: Vec<Sled>,
    /// The functions; the one with id n is at n - 1.
    pub(super) groups: Vec<Group>,
    pub(super) index: FunctionIndex,
    pub(super) warnings: Vec<Warning>,
}

/// A function's sleds.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) function: SectionAddr,
    pub(super) sleds: Range<usize>,
    /// The addresses in the map of its first entry and behind its last one.
    entries: Range<SectionAddr>,
}

/// Counters of odd entries.
#[derive(Default)]
struct Oddities {
    unrelocated: usize,
    outside: Option<(usize, FileAddr)>,
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
    pub(super) fn read(file: &dyn ObjectFile) -> Result<Self, ObjectError> {
        let mut map = Self {
            sleds: Vec::new(),
            groups: Vec::new(),
            index: FunctionIndex::Absent,
            warnings: Vec::new(),
        };
        let MapSections { map: parts, index } = file.map_sections()?;
        let mut oddities = Oddities::default();
        let is_relocatable = file.identity().kind == ObjectKind::Relocatable;
        for words in &parts {
            check_size(words)?;
            if !is_relocatable {
                check_count(&file.identity().segments, words)?;
            }
            map.read_part(file, words, &mut oddities)?;
        }
        if map.sleds.is_empty() {
            return Err(ObjectError::NoMap);
        }
        if u32::try_from(map.groups.len()).is_err() {
            return Err(ObjectError::TooManyFunctions);
        }
        oddities.warn(&mut map.warnings);
        let identity = file.identity();
        if identity.kind != ObjectKind::Relocatable {
            warn_about_places(&identity.segments, &map.sleds, &mut map.warnings);
        }
        warn_about_kinds(&map.sleds, &mut map.warnings);
        map.compare_index(&index);
        Ok(map)
    }

    fn read_part(
        &mut self,
        file: &dyn ObjectFile,
        words: &Words<'_>,
        oddities: &mut Oddities,
    ) -> Result<(), ObjectError> {
        let section = words.section;
        let word = words.format.size();
        let kind_of_file = file.identity().kind;
        self.sleds.reserve(section.data.len() / (4 * word));
        for (number, entry) in section.data.chunks_exact(4 * word).enumerate() {
            let at = number * 4 * word;
            let &[kind, always, version] = entry[2 * word..]
                .first_chunk()
                .expect("an entry has four words");
            let is_empty = entry.iter().all(|&byte| byte == 0);
            if is_empty && !words.is_relocated(at) && !words.is_relocated(at + word) {
                return Err(ObjectError::EmptyEntry {
                    entry: self.sleds.len(),
                });
            }
            let fields = match version {
                0 | 1 => words.absolute(at).zip(words.absolute(at + word)),
                2 => words.relative(at).zip(words.relative(at + word)),
                version => {
                    return Err(ObjectError::UnknownVersion {
                        entry: self.sleds.len(),
                        version,
                    });
                }
            };
            let (place, function) =
                fields.expect("the section was checked to lie in the address space");
            let is_unrelocated = !words.is_known(at)
                || match kind_of_file {
                    ObjectKind::Executable | ObjectKind::Relocatable => false,
                    _ => version < 2 && place.address == FileAddr(0),
                };
            oddities.unrelocated += usize::from(is_unrelocated);
            if kind_of_file == ObjectKind::Relocatable && !is_unrelocated && !file.is_code(place) {
                let (count, first) = oddities.outside.unwrap_or((0, place.address));
                oddities.outside = Some((count + 1, first));
            }
            let entry_at = |offset: usize| SectionAddr {
                section: section.number,
                address: section.address.displaced(offset as u64),
            };
            self.add(
                function,
                entry_at(at)..entry_at(at + 4 * word),
                Sled {
                    address: place.address,
                    function: function.address,
                    kind: kind.into(),
                    always_instrument: always != 0,
                    version,
                },
            );
        }
        Ok(())
    }

    /// Adds a sled to the last function, or begins a new function. LLVM gives consecutive sleds of
    /// one function the same id.
    fn add(&mut self, function: SectionAddr, entry: Range<SectionAddr>, sled: Sled) {
        let number = self.sleds.len();
        self.sleds.push(sled);
        match self.groups.last_mut() {
            Some(last) if last.function == function => {
                last.sleds.end = number + 1;
                last.entries.end = entry.end;
            }
            _ => self.groups.push(Group {
                function,
                sleds: number..number + 1,
                entries: entry,
            }),
        }
    }

    fn compare_index(&mut self, parts: &[Words<'_>]) {
        let mut comparison = Comparison::default();
        for words in parts {
            let word = words.format.size();
            for at in (0..words.section.data.len()).step_by(2 * word) {
                let group = self.groups.get(comparison.entries);
                comparison.add(words, at, word, group);
            }
        }
        if comparison.entries == 0 {
            return;
        }
        self.index = match comparison.layout(self.groups.len()) {
            Ok(layout) => layout,
            Err(first) => {
                self.warnings.push(Warning::IndexDisagrees {
                    entries: comparison.entries,
                    functions: self.groups.len(),
                    first,
                });
                FunctionIndex::Disagrees
            }
        };
    }
}

/// The function index, compared with the map in both layouts.
#[derive(Default)]
struct Comparison {
    entries: usize,
    /// The first entry that does not fit the layout of addresses.
    not_addresses: Option<usize>,
    /// The first entry that does not fit the layout of distances.
    not_distances: Option<usize>,
}

// === impl Comparison ===

impl Comparison {
    fn add(&mut self, words: &Words<'_>, at: usize, word: usize, group: Option<&Group>) {
        let (addresses, distances) = group.map_or((false, false), |group| {
            let Range { start, end } = group.entries;
            let second = at + word;
            (
                words.absolute(at) == Some(start) && words.absolute(second) == Some(end),
                words.relative(at) == Some(start)
                    && words.raw(second) == Some(group.sleds.len() as u64),
            )
        });
        if !addresses {
            self.not_addresses.get_or_insert(self.entries);
        }
        if !distances {
            self.not_distances.get_or_insert(self.entries);
        }
        self.entries += 1;
    }

    /// The layout in which the index fits `functions` functions, or the first entry that does not
    /// fit.
    fn layout(&self, functions: usize) -> Result<FunctionIndex, usize> {
        let end = (self.entries < functions).then_some(self.entries);
        match (self.not_distances.or(end), self.not_addresses.or(end)) {
            (None, _) => Ok(FunctionIndex::Distances),
            (_, None) => Ok(FunctionIndex::Addresses),
            (Some(one), Some(other)) => Err(one.max(other)),
        }
    }
}

// === impl Oddities ===

impl Oddities {
    fn warn(&self, warnings: &mut Vec<Warning>) {
        if self.unrelocated > 0 {
            warnings.push(Warning::Unrelocated {
                count: self.unrelocated,
            });
        }
        if let Some((count, first)) = self.outside {
            warnings.push(Warning::OutsideCode { count, first });
        }
    }
}

fn check_size(words: &Words<'_>) -> Result<(), ObjectError> {
    let (address, size) = (words.section.address, words.section.data.len());
    let entry = 4 * words.format.size();
    let size_error = ObjectError::MapSize {
        size: size as u64,
        entry: entry as u64,
    };
    if !size.is_multiple_of(entry) {
        return Err(size_error);
    }
    match address.checked_add(size as u64) {
        Some(_) => Ok(()),
        None => Err(ObjectError::MapAddress {
            address,
            size: size as u64,
        }),
    }
}

/// Checks the number of sleds against the bytes of code. The length of the file is no bound,
/// because holes cost nothing.
fn check_count(segments: &[Segment], words: &Words<'_>) -> Result<(), ObjectError> {
    let code = segments.iter().filter(|segment| segment.executable);
    let text = code.fold(0_u64, |text, segment| {
        text.saturating_add(segment.file_size)
    });
    let sleds = words.section.data.len() / (4 * words.format.size());
    if sleds as u64 > text / SHORTEST_SLED + SPARE_SLEDS {
        return Err(ObjectError::TooManySleds { sleds, text });
    }
    Ok(())
}

fn warn_about_places(segments: &[Segment], sleds: &[Sled], warnings: &mut Vec<Warning>) {
    let code: Vec<_> = segments
        .iter()
        .filter(|segment| segment.executable)
        .collect();
    // Nearly all files have one such segment. The bound limits the time for a crafted file, which
    // is segments times sleds.
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
}

fn warn_about_kinds(sleds: &[Sled], warnings: &mut Vec<Warning>) {
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
