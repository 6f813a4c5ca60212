//! The Mach-O format: segments, sections, symbols, identity.
//!
//! ```text
//!  header       magic u32   processor u32 u32   type u32   commands: count u32, bytes u32
//!               flags u32   zero
//!  command      number u32  bytes u32   …
//!  segment      its name [16]   address u64   bytes u64   in the file: offset u64, bytes u64
//!               protection u32 u32   sections u32   flags u32
//!  section      name [16]   segment [16]   address u64   bytes u64   offset u32   alignment u32
//!               relocations: offset u32, count u32   flags u32   zero u32 u32 u32
//! ```
//!
//! The numbers are those of Apple's `mach-o/loader.h`. Only files for processors with sleds in
//! LLVM, x86-64 and AArch64, are read: they are 64-bit and little endian. As in an ELF file, no
//! part is trusted to be where it should.
//!
//! A file that is still to be linked (`.o`) has all sections in one segment without a name. So a
//! section is identified by the segment name in its own header.

mod fixups;
mod relocate;
mod symbols;

use super::bytes::{Budget, RawName, WordFormat, outside, range};
use super::file::{Identity, MapSections, ObjectFile, ObjectKind, Segment, Symbols};
use super::section_addr::SectionAddr;
use super::words::{Section, Words};
use super::{FileAddr, Machine, ObjectError};
use crate::model::BuildId;

/// The word format of all files that are read.
const FORMAT: WordFormat = WordFormat {
    wide: true,
    little_endian: true,
};

const MAGIC_64: [u8; 4] = [0xcf, 0xfa, 0xed, 0xfe];
/// The magic numbers of related files: 32-bit, big endian, and several files for different
/// processors in one.
const OTHERS: [[u8; 4]; 5] = [
    [0xce, 0xfa, 0xed, 0xfe],
    [0xfe, 0xed, 0xfa, 0xce],
    [0xfe, 0xed, 0xfa, 0xcf],
    [0xca, 0xfe, 0xba, 0xbe],
    [0xca, 0xfe, 0xba, 0xbf],
];

const HEADER: usize = 32;
const SEGMENT: usize = 72;
const SECTION: usize = 80;

const MH_OBJECT: u32 = 1;
const MH_EXECUTE: u32 = 2;
const MH_DYLIB: u32 = 6;
const MH_BUNDLE: u32 = 8;
const MH_DSYM: u32 = 10;
const MH_PIE: u32 = 0x20_0000;

const LC_SYMTAB: u32 = 0x2;
const LC_ID_DYLIB: u32 = 0xd;
const LC_LOAD_DYLINKER: u32 = 0xe;
const LC_SEGMENT_64: u32 = 0x19;
const LC_UUID: u32 = 0x1b;
const LC_DYLD_CHAINED_FIXUPS: u32 = 0x8000_0034;

/// A section without bytes in the file.
const S_ZEROFILL: u32 = 1;
/// Flags of sections with machine code: some machine code, and only machine code.
const CODE: u32 = 0x400 | 0x8000_0000;

/// A symbol has its section number in one byte.
const MOST_SECTIONS: usize = 255;

/// The headers of a file, and access to the parts that they describe.
#[derive(Debug)]
pub(super) struct MachO<'a> {
    bytes: &'a [u8],
    identity: Identity,
    /// The first [`MOST_SECTIONS`] in the file's order.
    sections: Vec<SectionHeader>,
    /// The place of the symbols and of their names (`LC_SYMTAB`).
    symbol_table: Option<[u32; 4]>,
    /// The chained fixups (`LC_DYLD_CHAINED_FIXUPS`).
    fixups: Option<&'a [u8]>,
}

#[derive(Debug)]
struct SectionHeader {
    name: [u8; 16],
    segment: [u8; 16],
    address: FileAddr,
    size: u64,
    offset: u32,
    relocations: u32,
    relocation_count: u32,
    flags: u32,
}

/// Whether the file begins like a Mach-O file, readable or not.
pub(super) fn is_macho(bytes: &[u8]) -> bool {
    bytes
        .first_chunk()
        .is_some_and(|magic| *magic == MAGIC_64 || OTHERS.contains(magic))
}

// === impl MachO ===

impl<'a> MachO<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, ObjectError> {
        if !bytes.starts_with(&MAGIC_64) {
            return Err(ObjectError::OtherMachO);
        }
        let half = |at| FORMAT.half_at(bytes, at).ok_or(ObjectError::BadHeader);
        let kind = match (half(12)?, half(24)? & MH_PIE != 0) {
            (MH_EXECUTE | MH_DSYM, false) => ObjectKind::Executable,
            (MH_EXECUTE, true) | (MH_DSYM, true) => ObjectKind::PieExecutable,
            (MH_DYLIB | MH_BUNDLE, _) => ObjectKind::SharedLibrary,
            (MH_OBJECT, _) => ObjectKind::Relocatable,
            (other, _) => return Err(ObjectError::MachOType(other)),
        };
        let mut file = Self {
            bytes,
            identity: Identity {
                machine: machine(half(4)?)?,
                kind,
                interpreter: false,
                soname: None,
                build_id: None,
                segments: Vec::new(),
            },
            sections: Vec::new(),
            symbol_table: None,
            fixups: None,
        };
        let mut rest = range(bytes, HEADER as u64, half(20)?.into())
            .ok_or_else(|| outside(bytes, "load commands", HEADER as u64))?;
        for _ in 0..half(16)? {
            let size = FORMAT.half_at(rest, 4).ok_or(ObjectError::BadHeader)?;
            let size = usize::try_from(size).map_err(|_| ObjectError::BadHeader)?;
            // A command shorter than its own head would make the loop endless.
            let (command, after) = rest
                .split_at_checked(size)
                .filter(|_| size >= 8)
                .ok_or(ObjectError::BadHeader)?;
            file.read_command(command).ok_or(ObjectError::BadHeader)?;
            rest = after;
        }
        Ok(file)
    }

    /// Evaluates a load command; `None` if the command is shorter than its kind needs.
    fn read_command(&mut self, command: &'a [u8]) -> Option<()> {
        let half = |at| FORMAT.half_at(command, at);
        match half(0)? {
            LC_SEGMENT_64 => self.read_segment(command)?,
            LC_SYMTAB => self.symbol_table = Some([half(8)?, half(12)?, half(16)?, half(20)?]),
            LC_LOAD_DYLINKER => self.identity.interpreter = true,
            LC_UUID => self.identity.build_id = Some(BuildId(command.get(8..24)?.to_vec())),
            LC_ID_DYLIB => {
                let name = RawName::at(command, usize::try_from(half(8)?).ok()?).read();
                self.identity.soname = Some(String::from_utf8_lossy(name).into_owned());
            }
            LC_DYLD_CHAINED_FIXUPS => {
                self.fixups = range(self.bytes, half(8)?.into(), half(12)?.into());
            }
            _ => {}
        }
        Some(())
    }

    fn read_segment(&mut self, command: &[u8]) -> Option<()> {
        let double = |at| FORMAT.double_at(command, at);
        let protection = FORMAT.half_at(command, 60)?;
        self.identity.segments.push(Segment {
            file_offset: double(40)?,
            address: FileAddr(double(24)?),
            file_size: double(48)?,
            memory_size: double(32)?,
            readable: protection & 1 != 0,
            writable: protection & 2 != 0,
            executable: protection & 4 != 0,
        });
        let count = usize::try_from(FORMAT.half_at(command, 64)?).ok()?;
        let headers = command.get(SEGMENT..)?.chunks_exact(SECTION);
        if headers.len() < count {
            return None;
        }
        let room = MOST_SECTIONS.saturating_sub(self.sections.len());
        let headers = headers.take(count).take(room);
        self.sections
            .extend(headers.filter_map(SectionHeader::read));
        Some(())
    }

    /// The parts of a section in `__DATA`; several in a file that is not linked yet.
    fn data_sections(
        &self,
        name: &[u8],
        budget: &mut Budget,
    ) -> Result<Vec<Words<'a>>, ObjectError> {
        let most = match self.identity.kind {
            ObjectKind::Relocatable => MOST_SECTIONS,
            _ => 1,
        };
        self.sections
            .iter()
            .filter(|header| header.is_named(b"__DATA", name))
            .take(most)
            .map(|header| self.read_section(header, budget))
            .collect()
    }

    fn read_section(
        &self,
        header: &SectionHeader,
        budget: &mut Budget,
    ) -> Result<Words<'a>, ObjectError> {
        let data = if header.flags & 0xff == S_ZEROFILL {
            &[]
        } else {
            range(self.bytes, header.offset.into(), header.size)
                .ok_or_else(|| outside(self.bytes, "section contents", header.offset.into()))?
        };
        budget.spend(data.len())?;
        let section = Section {
            number: 0,
            address: header.address,
            data,
        };
        let mut words = Words::plain(section, FORMAT);
        if self.identity.kind == ObjectKind::Relocatable {
            self.relocate(header, &mut words, budget)?;
        } else {
            self.fix_up(&mut words);
        }
        Ok(words)
    }
}

impl ObjectFile for MachO<'_> {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn format(&self) -> WordFormat {
        FORMAT
    }

    fn map_sections(&self) -> Result<MapSections<'_>, ObjectError> {
        let mut budget = Budget::of(self.bytes.into());
        Ok(MapSections {
            map: self.data_sections(b"xray_instr_map", &mut budget)?,
            index: self.data_sections(b"xray_fn_idx", &mut budget)?,
        })
    }

    fn is_code(&self, place: SectionAddr) -> bool {
        self.sections.iter().any(|section| {
            section.flags & CODE != 0
                && place
                    .address
                    .offset_from(section.address)
                    .is_some_and(|inside| inside < section.size)
        })
    }

    /// No traced process runs a Mach-O program.
    fn section_range(&self, _: &str) -> Option<(FileAddr, u64)> {
        None
    }

    fn symbols(&self) -> Option<Symbols<'_>> {
        self.function_symbols()
    }
}

// === impl SectionHeader ===

impl SectionHeader {
    fn read(bytes: &[u8]) -> Option<Self> {
        let half = |at| FORMAT.half_at(bytes, at);
        Some(Self {
            name: *bytes.first_chunk()?,
            segment: *bytes.get(16..)?.first_chunk()?,
            address: FileAddr(FORMAT.double_at(bytes, 32)?),
            size: FORMAT.double_at(bytes, 40)?,
            offset: half(48)?,
            relocations: half(56)?,
            relocation_count: half(60)?,
            flags: half(64)?,
        })
    }

    fn is_named(&self, segment: &[u8], name: &[u8]) -> bool {
        RawName::at(&self.segment, 0).is(segment) && RawName::at(&self.name, 0).is(name)
    }
}

/// The processor by its `CPU_TYPE_` number.
fn machine(processor: u32) -> Result<Machine, ObjectError> {
    match processor {
        0x0100_0007 => Ok(Machine::X86_64),
        0x0100_000c => Ok(Machine::Aarch64),
        other => Err(ObjectError::MachOProcessor(other)),
    }
}
