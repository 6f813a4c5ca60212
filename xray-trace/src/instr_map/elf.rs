//! What an ELF file says about itself: segments, sections, symbols, identity.
//!
//! goblin decodes the headers. Everything behind them is read lazily and with checked ranges, because the file is the
//! target's and may be anything: no table is trusted to lie in the file, each is read once, and what is kept is bounded
//! by the file's size.

use goblin::container::Ctx;
use goblin::elf::{Elf as GoblinElf, Header, ProgramHeader, SectionHeader};
use goblin::elf::{Symtab, dynamic, header, program_header, section_header};

use super::{FileAddr, Machine, ObjectError};
use crate::model::BuildId;

/// Bytes of a name in the file that are looked at; longer names are cut.
pub(super) const LONGEST_NAME: usize = 64 * 1024;

/// Segments and notes that are searched for a build id.
const NOTE_SEGMENTS: usize = 16;
const NOTES_PER_SEGMENT: usize = 64;

/// Entries of the dynamic section that are looked at.
const DYNAMIC_ENTRIES: usize = 4096;

/// How an object is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A program at a fixed address.
    Executable,
    /// A position-independent program.
    PieExecutable,
    /// A shared library.
    SharedLibrary,
    /// Not at all: it is still to be linked (`.o`). Addresses count from the begin of their section.
    Relocatable,
}

/// Which files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accept {
    /// 64-bit programs and libraries.
    Loadable,
    /// Also 32-bit ones, and relocatable files.
    All,
}

/// An address and, in a relocatable file, the number of the section that it counts from; else 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) section: u32,
    pub(super) address: FileAddr,
}

/// A part of the file that is mapped into memory (`PT_LOAD`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it begins in the file.
    pub file_offset: u64,
    /// Where it begins in memory, before the load bias.
    pub address: FileAddr,
    /// Its bytes in the file.
    pub file_size: u64,
    /// Its bytes in memory; what exceeds `file_size` is zero.
    pub memory_size: u64,
    /// It can be read.
    pub readable: bool,
    /// It can be written.
    pub writable: bool,
    /// It can be executed.
    pub executable: bool,
}

/// A file's headers, and access to what they describe.
#[derive(Debug)]
pub(super) struct Elf<'a> {
    bytes: &'a [u8],
    ctx: Ctx,
    pub(super) machine: Machine,
    pub(super) kind: ObjectKind,
    pub(super) interpreter: bool,
    pub(super) soname: Option<String>,
    pub(super) build_id: Option<BuildId>,
    pub(super) segments: Vec<Segment>,
    sections: Vec<SectionHeader>,
    section_names: &'a [u8],
}

/// A symbol table and its strings.
#[derive(Debug)]
pub(super) struct Symbols<'a> {
    pub(super) table: Symtab<'a>,
    strings: &'a [u8],
    /// Section numbers that do not fit into the table, one `u32` for each symbol.
    sections: &'a [u8],
    little_endian: bool,
}

/// Where a section lies in memory, and its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section<'a> {
    pub(super) number: u32,
    pub(super) address: FileAddr,
    pub(super) data: &'a [u8],
}

/// What the dynamic section says.
#[derive(Default)]
struct DynamicInfo {
    pie_flag: bool,
    soname: Option<String>,
}

// === impl Segment ===

impl Segment {
    /// Whether the address lies in this segment's memory.
    pub fn contains(&self, address: FileAddr) -> bool {
        address
            .offset_from(self.address)
            .is_some_and(|offset| offset < self.memory_size)
    }

    fn offset_of(&self, address: FileAddr) -> Option<u64> {
        let inside = address.offset_from(self.address)?;
        (inside < self.file_size).then(|| self.file_offset.checked_add(inside))?
    }
}

/// The offset in the file of the byte at this address, if the file holds it.
pub(super) fn address_to_offset(segments: &[Segment], address: FileAddr) -> Option<u64> {
    segments
        .iter()
        .find_map(|segment| segment.offset_of(address))
}

// === impl Elf ===

impl<'a> Elf<'a> {
    pub(super) fn parse(bytes: &'a [u8], accept: Accept) -> Result<Self, ObjectError> {
        let header = parse_header(bytes, accept)?;
        let ctx = Ctx::new(
            header.container().map_err(|_| ObjectError::BadHeader)?,
            header.endianness().map_err(|_| ObjectError::BadHeader)?,
        );
        let program_headers = ProgramHeader::parse(
            bytes,
            index(header.e_phoff)?,
            usize::from(header.e_phnum),
            ctx,
        )
        .map_err(|_| outside(bytes, "program headers", header.e_phoff))?;
        let sections = SectionHeader::parse(
            bytes,
            index(header.e_shoff)?,
            usize::from(header.e_shnum),
            ctx,
        )
        .map_err(|_| outside(bytes, "section headers", header.e_shoff))?;
        let names_index = match u32::from(header.e_shstrndx) {
            section_header::SHN_XINDEX => sections.first().map_or(0, |first| first.sh_link),
            direct => direct,
        };
        let segments: Vec<Segment> = program_headers
            .iter()
            .filter(|header| header.p_type == program_header::PT_LOAD)
            .map(Segment::from)
            .collect();

        let mut elf = Self {
            bytes,
            ctx,
            machine: header.e_machine.into(),
            kind: ObjectKind::Executable,
            interpreter: program_headers
                .iter()
                .any(|p| p.p_type == program_header::PT_INTERP),
            soname: None,
            build_id: None,
            segments,
            sections,
            section_names: &[],
        };
        elf.section_names = elf.linked_contents(names_index);
        elf.build_id = elf.find_build_id(&program_headers);
        let DynamicInfo { pie_flag, soname } = elf.read_dynamic(&program_headers);
        elf.kind = match header.e_type {
            header::ET_EXEC => ObjectKind::Executable,
            header::ET_REL => ObjectKind::Relocatable,
            // libc.so.6 has an interpreter too, but also a name to be linked by.
            _ if pie_flag || (elf.interpreter && soname.is_none()) => ObjectKind::PieExecutable,
            _ => ObjectKind::SharedLibrary,
        };
        elf.soname = soname;
        Ok(elf)
    }

    pub(super) fn has_sections(&self) -> bool {
        !self.sections.is_empty()
    }

    pub(super) fn sections(&self) -> &[SectionHeader] {
        &self.sections
    }

    pub(super) fn file_size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The first section of this name that has bytes in the file.
    pub(super) fn section(&self, name: &str) -> Result<Option<Section<'a>>, ObjectError> {
        let found = self.sections_named(name).next();
        found
            .map(|(number, header)| self.read_section(number, header))
            .transpose()
    }

    /// The sections of this name that the linker makes one of: all of a relocatable file, and of any other the first.
    pub(super) fn parts(&self, name: &str) -> Result<Vec<Section<'a>>, ObjectError> {
        let most = match self.kind {
            ObjectKind::Relocatable => usize::MAX,
            _ => 1,
        };
        self.sections_named(name)
            .take(most)
            .map(|(number, header)| self.read_section(number, header))
            .collect()
    }

    /// Whether there is code at this place of a relocatable file.
    pub(super) fn is_code(&self, place: Place) -> bool {
        let section = usize::try_from(place.section).ok();
        let section = section.and_then(|number| self.sections.get(number));
        section.is_some_and(|section| section.is_executable() && place.address.0 < section.sh_size)
    }

    /// Whether the section of this name is compressed.
    pub(super) fn is_compressed(&self, name: &str) -> bool {
        self.find_section(name).is_some_and(|section| {
            section.sh_flags & u64::from(section_header::SHF_COMPRESSED) != 0
        })
    }

    pub(super) fn is_little_endian(&self) -> bool {
        self.ctx.is_little_endian()
    }

    /// Whether words have eight bytes, not four.
    pub(super) fn is_wide(&self) -> bool {
        self.ctx.is_big()
    }

    pub(super) fn word_size(&self) -> usize {
        self.ctx.size()
    }

    /// The word at `offset`, in the file's size and byte order.
    pub(super) fn word(&self, data: &[u8], offset: usize) -> Option<u64> {
        let rest = data.get(offset..)?;
        if !self.is_wide() {
            return Some(self.half_word(*rest.first_chunk()?).into());
        }
        let word = rest.first_chunk()?;
        Some(if self.ctx.is_little_endian() {
            u64::from_le_bytes(*word)
        } else {
            u64::from_be_bytes(*word)
        })
    }

    /// The word at `offset` as a distance: four bytes have a sign.
    pub(super) fn distance(&self, data: &[u8], offset: usize) -> Option<u64> {
        let word = self.word(data, offset)?;
        if self.is_wide() {
            return Some(word);
        }
        let signed = u32::try_from(word).ok()?.cast_signed();
        Some(i64::from(signed).cast_unsigned())
    }

    /// The first table of this section type (`SHT_SYMTAB`, `SHT_DYNSYM`), if it is readable.
    pub(super) fn symbols(&self, section_type: u32) -> Option<Symbols<'a>> {
        let section = self
            .sections
            .iter()
            .find(|section| section.sh_type == section_type)?;
        let data = self.contents(section).ok()?;
        let size = if self.is_wide() { 24 } else { 16 };
        let table = Symtab::parse(data, 0, data.len() / size, self.ctx).ok()?;
        let sections = self.sections.iter().find(|section| {
            section_type == section_header::SHT_SYMTAB
                && section.sh_type == section_header::SHT_SYMTAB_SHNDX
        });
        let sections = sections.and_then(|section| self.contents(section).ok());
        Some(Symbols {
            table,
            strings: self.linked_contents(section.sh_link),
            sections: sections.unwrap_or_default(),
            little_endian: self.is_little_endian(),
        })
    }

    pub(super) fn find_section(&self, name: &str) -> Option<&SectionHeader> {
        self.sections_named(name).next().map(|(_, header)| header)
    }

    fn sections_named(&self, name: &str) -> impl Iterator<Item = (u32, &SectionHeader)> {
        (0..).zip(&self.sections).filter(move |(_, section)| {
            section.sh_type != section_header::SHT_NOBITS
                && self
                    .section_names
                    .get(section.sh_name..)
                    .and_then(|names| names.strip_prefix(name.as_bytes()))
                    .is_some_and(|rest| rest.first() == Some(&0))
        })
    }

    fn read_section(
        &self,
        number: u32,
        header: &SectionHeader,
    ) -> Result<Section<'a>, ObjectError> {
        Ok(Section {
            number,
            address: FileAddr(header.sh_addr),
            data: self.contents(header)?,
        })
    }

    pub(super) fn contents(&self, section: &SectionHeader) -> Result<&'a [u8], ObjectError> {
        if section.sh_type == section_header::SHT_NOBITS {
            return Ok(&[]);
        }
        range(self.bytes, section.sh_offset, section.sh_size)
            .ok_or_else(|| outside(self.bytes, "section contents", section.sh_offset))
    }

    /// The bytes of the section with this index, or none: for tables whose absence costs names only.
    fn linked_contents(&self, section: u32) -> &'a [u8] {
        usize::try_from(section)
            .ok()
            .and_then(|section| self.sections.get(section))
            .and_then(|section| self.contents(section).ok())
            .unwrap_or_default()
    }

    fn find_build_id(&self, program_headers: &[ProgramHeader]) -> Option<BuildId> {
        let from_segments = program_headers
            .iter()
            .filter(|header| header.p_type == program_header::PT_NOTE)
            .take(NOTE_SEGMENTS)
            .find_map(|header| {
                self.build_id_in(range(self.bytes, header.p_offset, header.p_filesz)?)
            });
        from_segments.or_else(|| {
            let section = self.section(".note.gnu.build-id").ok()??;
            self.build_id_in(section.data)
        })
    }

    /// Notes are three 4-byte words (name size, value size, type), the name and the value, each padded to 4 bytes.
    fn build_id_in(&self, notes: &[u8]) -> Option<BuildId> {
        const NT_GNU_BUILD_ID: u32 = 3;
        let mut rest = notes;
        for _ in 0..NOTES_PER_SEGMENT {
            let (head, body) = rest.split_first_chunk::<12>()?;
            let [name_size, value_size, note_type] = [0, 4, 8]
                .map(|at| self.half_word([head[at], head[at + 1], head[at + 2], head[at + 3]]));
            let value_at = usize::try_from(name_size)
                .ok()?
                .checked_next_multiple_of(4)?;
            let value_size = usize::try_from(value_size).ok()?;
            let value = body.get(value_at..value_at.checked_add(value_size)?)?;
            if note_type == NT_GNU_BUILD_ID && body.starts_with(b"GNU\0") {
                // Linkers write 8 to 32 bytes.
                return (1..=64)
                    .contains(&value.len())
                    .then(|| BuildId(value.to_vec()));
            }
            let next = value_at.checked_add(value_size.checked_next_multiple_of(4)?)?;
            rest = body.get(next..)?;
        }
        None
    }

    fn half_word(&self, bytes: [u8; 4]) -> u32 {
        if self.ctx.is_little_endian() {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        }
    }

    fn read_dynamic(&self, program_headers: &[ProgramHeader]) -> DynamicInfo {
        let mut info = DynamicInfo::default();
        let table = program_headers
            .iter()
            .find(|header| header.p_type == program_header::PT_DYNAMIC)
            .and_then(|header| range(self.bytes, header.p_offset, header.p_filesz))
            .unwrap_or_default();
        let (mut strings, mut soname) = (None, None);
        let size = self.word_size();
        for entry in table.chunks_exact(2 * size).take(DYNAMIC_ENTRIES) {
            let (Some(tag), Some(value)) = (self.word(entry, 0), self.word(entry, size)) else {
                break;
            };
            match tag {
                dynamic::DT_NULL => break,
                dynamic::DT_STRTAB => strings = Some(FileAddr(value)),
                dynamic::DT_SONAME => soname = Some(value),
                dynamic::DT_FLAGS_1 => info.pie_flag = value & dynamic::DF_1_PIE != 0,
                _ => {}
            }
        }
        info.soname = strings.zip(soname).and_then(|(strings, soname)| {
            let offset = address_to_offset(&self.segments, strings.checked_add(soname)?)?;
            let name = string_at(self.bytes, usize::try_from(offset).ok()?);
            (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
        });
        info
    }
}

// === impl Symbols ===

impl<'a> Symbols<'a> {
    /// The name at this offset of the string table, without its terminator; empty when it is not there.
    pub(super) fn name(&self, offset: usize) -> &'a [u8] {
        string_at(self.strings, offset)
    }

    /// Whether the name at this offset starts with one of these.
    pub(super) fn name_starts(&self, offset: usize, with: &[&[u8]]) -> bool {
        let rest = self.strings.get(offset..).unwrap_or_default();
        with.iter().any(|start| rest.starts_with(start))
    }

    /// Where the symbol with this number is, if this file defines it.
    pub(super) fn place(&self, kind: ObjectKind, number: usize) -> Option<Place> {
        let symbol = self.table.get(number)?;
        Some(Place {
            section: self.section_of(kind, number, symbol.st_shndx)?,
            address: FileAddr(symbol.st_value),
        })
    }

    /// The section that the address of the symbol with this number counts from, or `None` where the file does not define
    /// it.
    pub(super) fn section_of(&self, kind: ObjectKind, number: usize, index: usize) -> Option<u32> {
        const ABSOLUTE: u32 = section_header::SHN_ABS;
        const COMMON: u32 = section_header::SHN_COMMON;
        match u32::try_from(index).ok()? {
            section_header::SHN_UNDEF => None,
            _ if kind != ObjectKind::Relocatable => Some(0),
            ABSOLUTE => Some(0),
            COMMON => None,
            section_header::SHN_XINDEX => {
                let word = self.sections.get(number.checked_mul(4)?..)?.first_chunk()?;
                Some(if self.little_endian {
                    u32::from_le_bytes(*word)
                } else {
                    u32::from_be_bytes(*word)
                })
            }
            direct => Some(direct),
        }
    }

    /// Whether the name at this offset is `name`: without reading a longer one to its end.
    pub(super) fn is_named(&self, offset: usize, name: &[u8]) -> bool {
        let rest = self
            .strings
            .get(offset..)
            .and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.first().is_none_or(|&end| end == 0))
    }
}

// === impl Segment, from goblin's ===

impl From<&ProgramHeader> for Segment {
    fn from(header: &ProgramHeader) -> Self {
        Self {
            file_offset: header.p_offset,
            address: FileAddr(header.p_vaddr),
            file_size: header.p_filesz,
            memory_size: header.p_memsz,
            readable: header.p_flags & program_header::PF_R != 0,
            writable: header.p_flags & program_header::PF_W != 0,
            executable: header.p_flags & program_header::PF_X != 0,
        }
    }
}

fn parse_header(bytes: &[u8], accept: Accept) -> Result<Header, ObjectError> {
    let ident: &[u8; header::SIZEOF_IDENT] = bytes.first_chunk().ok_or(ObjectError::NotElf)?;
    if !ident.starts_with(header::ELFMAG) {
        return Err(ObjectError::NotElf);
    }
    let loadable = accept == Accept::Loadable;
    if loadable && ident[header::EI_CLASS] == header::ELFCLASS32 {
        return Err(ObjectError::ThirtyTwoBit);
    }
    let header = GoblinElf::parse_header(bytes).map_err(|_| ObjectError::BadHeader)?;
    match header.e_type {
        header::ET_EXEC | header::ET_DYN => Ok(header),
        header::ET_REL if loadable => Err(ObjectError::Relocatable),
        header::ET_REL => Ok(header),
        other => Err(ObjectError::NotLoadable(other)),
    }
}

fn outside(bytes: &[u8], what: &'static str, offset: u64) -> ObjectError {
    ObjectError::OutsideFile {
        what,
        offset,
        file_size: bytes.len() as u64,
    }
}

fn index(offset: u64) -> Result<usize, ObjectError> {
    usize::try_from(offset).map_err(|_| ObjectError::BadHeader)
}

fn range(bytes: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    bytes.get(start..end)
}

/// The bytes up to the next zero byte, at most [`LONGEST_NAME`]; empty when `offset` lies outside.
fn string_at(strings: &[u8], offset: usize) -> &[u8] {
    let rest = strings.get(offset..).unwrap_or_default();
    let rest = &rest[..rest.len().min(LONGEST_NAME)];
    let end = rest
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(rest.len());
    &rest[..end]
}
