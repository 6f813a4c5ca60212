//! The identity of an ELF file: its kind, its build id, its soname. Segments and sections are read
//! before, in `elf`.

use goblin::elf::{ProgramHeader, dynamic, header, program_header};

use super::headers::Elf;
use crate::FileAddr;
use crate::instr_map::bytes::{RawName, range};
use crate::instr_map::file::{ObjectKind, address_to_offset};
use crate::model::BuildId;

/// The most segments that are searched for a build id, and the most notes in each.
const NOTE_SEGMENTS: usize = 16;
const NOTES_PER_SEGMENT: usize = 64;

/// The most entries of the dynamic section that are read.
const DYNAMIC_ENTRIES: usize = 4096;

/// The facts from the dynamic section.
#[derive(Default)]
struct DynamicInfo {
    pie_flag: bool,
    soname: Option<String>,
}

// === impl Elf ===

impl Elf<'_> {
    /// Sets the parts of the identity that need segments and sections.
    pub(super) fn identify(&mut self, file_type: u16, program_headers: &[ProgramHeader]) {
        let DynamicInfo { pie_flag, soname } = self.read_dynamic(program_headers);
        let interpreter = program_headers
            .iter()
            .any(|header| header.p_type == program_header::PT_INTERP);
        self.identity.kind = match file_type {
            header::ET_EXEC => ObjectKind::Executable,
            header::ET_REL => ObjectKind::Relocatable,
            // libc.so.6 has an interpreter too, but also a soname.
            _ if pie_flag || (interpreter && soname.is_none()) => ObjectKind::PieExecutable,
            _ => ObjectKind::SharedLibrary,
        };
        self.identity.interpreter = interpreter;
        self.identity.soname = soname;
        self.identity.build_id = self.find_build_id(program_headers);
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

    /// Notes are three 4-byte words (name size, value size, type), the name and the value. Name and
    /// value are each padded to 4 bytes.
    fn build_id_in(&self, notes: &[u8]) -> Option<BuildId> {
        const NT_GNU_BUILD_ID: u32 = 3;
        let mut rest = notes;
        for _ in 0..NOTES_PER_SEGMENT {
            let (head, body) = rest.split_first_chunk::<12>()?;
            let [name_size, value_size, note_type] =
                [0, 4, 8].map(|at| self.word_format().half_at(head, at).unwrap_or_default());
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

    fn read_dynamic(&self, program_headers: &[ProgramHeader]) -> DynamicInfo {
        let mut info = DynamicInfo::default();
        let table = program_headers
            .iter()
            .find(|header| header.p_type == program_header::PT_DYNAMIC)
            .and_then(|header| range(self.bytes, header.p_offset, header.p_filesz))
            .unwrap_or_default();
        let (mut strings, mut soname) = (None, None);
        let format = self.word_format();
        let size = format.size();
        for entry in table.chunks_exact(2 * size).take(DYNAMIC_ENTRIES) {
            let (Some(tag), Some(value)) = (format.word(entry, 0), format.word(entry, size)) else {
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
            let offset = address_to_offset(&self.identity.segments, strings.checked_add(soname)?)?;
            let name = RawName::at(self.bytes, usize::try_from(offset).ok()?).read();
            (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
        });
        info
    }
}
