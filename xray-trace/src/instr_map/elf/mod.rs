//! The ELF format: segments, sections, symbols, identity.
//!
//! goblin decodes the headers. This module reads all other parts lazily and with checked ranges,
//! because the file belongs to the target and may have any content. No table is trusted to be
//! inside the file, each table is read once, and the bytes of the file that are present bound the
//! data that is kept.

mod headers;
mod identity;
mod relocate;
mod symbols;

use goblin::container::Ctx;
use goblin::elf::{Elf as GoblinElf, Header, ProgramHeader, SectionHeader};
use goblin::elf::{header, program_header, section_header};

pub(super) use self::headers::Elf;
use self::relocate::Relocations;
use super::bytes::{ObjectBytes, WordFormat, outside};
use super::file::{Identity, MapSections, ObjectFile, ObjectKind, Segment, Symbols};
use super::section_addr::SectionAddr;
use super::words::Words;
use super::{FileAddr, ObjectError};

const MAP: &str = "xray_instr_map";
const INDEX: &str = "xray_fn_idx";

/// The files that are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accept {
    /// 64-bit programs and libraries.
    Loadable,
    /// Also 32-bit ones, and relocatable files.
    All,
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
        let no_sections = || outside(bytes, "section headers", header.e_shoff);
        let sections_at = index(header.e_shoff)?;
        if header.e_shnum == 0 {
            // The first header has the number then. In a file with holes it may be any number.
            let first = SectionHeader::parse(bytes, sections_at, 1, ctx);
            let first = first.map_err(|_| no_sections())?;
            let count = first.first().map_or(0, |first| first.sh_size);
            let size = SectionHeader::size(ctx).max(1);
            if count > (file.allowance(1) / size) as u64 {
                return Err(no_sections());
            }
        }
        let sections = SectionHeader::parse(bytes, sections_at, usize::from(header.e_shnum), ctx)
            .map_err(|_| no_sections())?;
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
}

impl ObjectFile for Elf<'_> {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn format(&self) -> WordFormat {
        self.word_format()
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

    fn is_code(&self, place: SectionAddr) -> bool {
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
