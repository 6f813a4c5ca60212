//! The headers of an ELF file, and the sections that they describe. Symbols, relocations and the
//! file's identity are read elsewhere: `symbols`, `relocate`, `identity`.

use goblin::container::Ctx;
use goblin::elf::{ProgramHeader, SectionHeader, program_header, section_header};

use crate::FileAddr;
use crate::instr_map::ObjectError;
use crate::instr_map::bytes::{ObjectBytes, WordFormat, outside, range};
use crate::instr_map::file::{Identity, ObjectKind, Segment};
use crate::instr_map::words::Section;

/// The headers of a file, and access to the parts that they describe.
#[derive(Debug)]
pub(in crate::instr_map) struct Elf<'a> {
    pub(super) file: ObjectBytes<'a>,
    pub(super) bytes: &'a [u8],
    pub(super) ctx: Ctx,
    pub(in crate::instr_map) identity: Identity,
    pub(super) sections: Vec<SectionHeader>,
    pub(super) section_names: &'a [u8],
}

// === impl Elf ===

impl<'a> Elf<'a> {
    /// The size and byte order of the file's words.
    pub(super) fn word_format(&self) -> WordFormat {
        WordFormat {
            wide: self.ctx.is_big(),
            little_endian: self.ctx.is_little_endian(),
        }
    }

    /// The first section of this name that has bytes in the file.
    pub(in crate::instr_map) fn section(
        &self,
        name: &str,
    ) -> Result<Option<Section<'a>>, ObjectError> {
        let found = self.sections_named(name).next();
        found
            .map(|(number, header)| self.read_section(number, header))
            .transpose()
    }

    /// The sections of this name that the linker joins: all of them in a relocatable file, and the
    /// first one in any other file.
    pub(super) fn parts(&self, name: &str) -> Result<Vec<Section<'a>>, ObjectError> {
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
    pub(in crate::instr_map) fn is_compressed(&self, name: &str) -> bool {
        self.find_section(name).is_some_and(|section| {
            section.sh_flags & u64::from(section_header::SHF_COMPRESSED) != 0
        })
    }

    /// The header of the first section of this name that has bytes in the file.
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
            number: match self.identity.kind {
                ObjectKind::Relocatable => number,
                _ => 0,
            },
            address: FileAddr(header.sh_addr),
            data: self.contents(header)?,
        })
    }

    /// The bytes of a section.
    pub(super) fn contents(&self, section: &SectionHeader) -> Result<&'a [u8], ObjectError> {
        if section.sh_type == section_header::SHT_NOBITS {
            return Ok(&[]);
        }
        range(self.bytes, section.sh_offset, section.sh_size)
            .ok_or_else(|| outside(self.bytes, "section contents", section.sh_offset))
    }

    /// The bytes of the section with this index, or no bytes: without them only names are missing.
    pub(super) fn linked_contents(&self, section: u32) -> &'a [u8] {
        usize::try_from(section)
            .ok()
            .and_then(|section| self.sections.get(section))
            .and_then(|section| self.contents(section).ok())
            .unwrap_or_default()
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
