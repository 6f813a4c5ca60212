//! What an ELF file says about itself: segments, sections, symbols, identity.
//!
//! goblin decodes the headers. Everything behind them is read lazily and with checked ranges, because the file is the
//! target's and may be anything: no table is trusted to lie in the file, each is read once, and what is kept is bounded
//! by the bytes of it that are there.

mod identity;
mod relocate;
mod symbols;

use goblin::container::Ctx;
use goblin::elf::{Elf as GoblinElf, Header, ProgramHeader, SectionHeader};
use goblin::elf::{header, program_header, section_header};

use self::relocate::Relocations;
use super::bytes::{ObjectBytes, WordFormat, outside, range};
use super::file::{Identity, MapSections, ObjectFile, ObjectKind, Place, Segment, Symbols};
use super::words::{Section, Words};
use super::{FileAddr, ObjectError};

const MAP: &str = "xray_instr_map";
const INDEX: &str = "xray_fn_idx";

/// Which files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accept {
    /// 64-bit programs and libraries.
    Loadable,
    /// Also 32-bit ones, and relocatable files.
    All,
}

/// A file's headers, and access to what they describe.
#[derive(Debug)]
pub(super) struct Elf<'a> {
    file: ObjectBytes<'a>,
    bytes: &'a [u8],
    ctx: Ctx,
    pub(super) identity: Identity,
    sections: Vec<SectionHeader>,
    section_names: &'a [u8],
}

pub(super) fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(header::ELFMAG)
}

// === impl Elf ===

impl<'a> Elf<'a> {
    pub(super) fn parse(file: ObjectBytes<'a>, accept: Accept) -> Result<Self, ObjectError> {
        let bytes = file.all();
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
            file,
            bytes,
            ctx,
            identity: Identity {
                machine: header.e_machine.into(),
                kind: ObjectKind::Executable,
                interpreter: false,
                soname: None,
                build_id: None,
                segments,
            },
            sections,
            section_names: &[],
        };
        elf.section_names = elf.linked_contents(names_index);
        elf.identify(header.e_type, &program_headers);
        Ok(elf)
    }

    /// The first section of this name that has bytes in the file.
    pub(super) fn section(&self, name: &str) -> Result<Option<Section<'a>>, ObjectError> {
        let found = self.sections_named(name).next();
        found
            .map(|(number, header)| self.read_section(number, header))
            .transpose()
    }

    /// The sections of this name that the linker makes one of: all of a relocatable file, and of any other the first.
    fn parts(&self, name: &str) -> Result<Vec<Section<'a>>, ObjectError> {
        let most = match self.identity.kind {
            ObjectKind::Relocatable => usize::MAX,
            _ => 1,
        };
        self.sections_named(name)
            .take(most)
            .map(|(number, header)| self.read_section(number, header))
            .collect()
    }

    /// Whether the section of this name is compressed.
    pub(super) fn is_compressed(&self, name: &str) -> bool {
        self.find_section(name).is_some_and(|section| {
            section.sh_flags & u64::from(section_header::SHF_COMPRESSED) != 0
        })
    }

    fn find_section(&self, name: &str) -> Option<&SectionHeader> {
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
            number: match self.identity.kind {
                ObjectKind::Relocatable => number,
                _ => 0,
            },
            address: FileAddr(header.sh_addr),
            data: self.contents(header)?,
        })
    }

    fn contents(&self, section: &SectionHeader) -> Result<&'a [u8], ObjectError> {
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
}

impl ObjectFile for Elf<'_> {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn format(&self) -> WordFormat {
        WordFormat {
            wide: self.ctx.is_big(),
            little_endian: self.ctx.is_little_endian(),
        }
    }

    fn map_sections(&self) -> Result<MapSections<'_>, ObjectError> {
        if self.sections.is_empty() {
            return Err(ObjectError::NoSectionHeaders);
        }
        let mut relocations = Relocations::of(self);
        let mut read = |name| -> Result<Vec<Words<'_>>, ObjectError> {
            let parts = self.parts(name)?.into_iter();
            parts.map(|section| relocations.apply(section)).collect()
        };
        Ok(MapSections {
            map: read(MAP)?,
            index: read(INDEX)?,
        })
    }

    fn is_code(&self, place: Place) -> bool {
        let section = usize::try_from(place.section).ok();
        let section = section.and_then(|number| self.sections.get(number));
        section.is_some_and(|section| section.is_executable() && place.address.0 < section.sh_size)
    }

    fn section_range(&self, name: &str) -> Option<(FileAddr, u64)> {
        let section = self.find_section(name)?;
        Some((FileAddr(section.sh_addr), section.sh_size))
    }

    fn symbols(&self) -> Option<Symbols<'_>> {
        self.function_symbols()
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

fn index(offset: u64) -> Result<usize, ObjectError> {
    usize::try_from(offset).map_err(|_| ObjectError::BadHeader)
}
