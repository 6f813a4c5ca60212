//! A small ELF writer, for files that no linker would write.

/// A program with one executable segment that has the whole file at [`BASE`], and these sections.
#[derive(Default)]
pub(crate) struct Image {
    pub(crate) sections: Vec<(String, Vec<u8>, SectionShape)>,
}

/// The fields of a section header besides name, place and size.
#[derive(Clone, Copy, Default)]
pub(crate) struct SectionShape {
    pub(crate) kind: u32,
    pub(crate) link: u32,
}

pub(crate) const BASE: u64 = 0x40_0000;

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;

impl Image {
    /// Adds a section of plain bytes.
    pub(crate) fn with(mut self, name: &str, data: Vec<u8>) -> Self {
        self.sections
            .push((name.into(), data, SectionShape { kind: 1, link: 0 }));
        self
    }

    /// Adds a symbol table of (name's offset, address) and its strings.
    pub(crate) fn with_symbols(mut self, symbols: &[(u32, u64)], strings: Vec<u8>) -> Self {
        let mut table = vec![0; 24];
        for (name, address) in symbols {
            table.extend(name.to_le_bytes());
            table.extend([0x12, 0, 1, 0]);
            table.extend(address.to_le_bytes());
            table.extend(4_u64.to_le_bytes());
        }
        let link = u32::try_from(self.sections.len()).unwrap() + 2;
        self.sections
            .push((".symtab".into(), table, SectionShape { kind: 2, link }));
        self.sections
            .push((".strtab".into(), strings, SectionShape { kind: 3, link: 0 }));
        self
    }

    /// The address that the first section will have.
    pub(crate) fn first_address() -> u64 {
        BASE + (HEADER + PROGRAM_HEADER) as u64
    }

    pub(crate) fn build(self) -> Vec<u8> {
        let mut names = vec![0];
        let mut body = Vec::new();
        let mut headers = vec![0; 64];
        let count = self.sections.len() + 2;
        let own_names: Vec<_> = self
            .sections
            .iter()
            .map(|(name, ..)| name.clone())
            .collect();
        let mut name_offsets = Vec::new();
        for name in own_names.iter().map(String::as_str).chain([".shstrtab"]) {
            name_offsets.push(u32::try_from(names.len()).unwrap());
            names.extend(name.bytes().chain([0]));
        }
        let last = (
            ".shstrtab".to_owned(),
            names,
            SectionShape { kind: 3, link: 0 },
        );
        for ((_, data, shape), name) in self.sections.into_iter().chain([last]).zip(name_offsets) {
            let offset = (HEADER + PROGRAM_HEADER + body.len()) as u64;
            headers.extend(name.to_le_bytes());
            headers.extend(shape.kind.to_le_bytes());
            for word in [2, BASE + offset, offset, data.len() as u64] {
                headers.extend(word.to_le_bytes());
            }
            headers.extend(shape.link.to_le_bytes());
            headers.extend([0; 4]);
            headers.extend([0; 16]);
            body.extend(data);
        }
        let table = (HEADER + PROGRAM_HEADER + body.len()) as u64;

        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
        for half in [2_u16, 62] {
            file.extend(half.to_le_bytes());
        }
        file.extend(1_u32.to_le_bytes());
        for word in [BASE, HEADER as u64, table] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0; 4]);
        let count = u16::try_from(count).unwrap();
        for half in [64_u16, 56, 1, 64, count, count - 1] {
            file.extend(half.to_le_bytes());
        }
        file.extend(1_u32.to_le_bytes());
        file.extend(5_u32.to_le_bytes());
        for word in [0, BASE, BASE, table, table, 0x1000] {
            file.extend(word.to_le_bytes());
        }
        file.extend(body);
        file.extend(headers);
        file
    }
}

/// An entry of `xray_instr_map` in the encoding of the file.
pub(crate) fn entry(address: u64, function: u64, kind: u8, version: u8) -> [u8; 32] {
    let mut entry = [0; 32];
    entry[..8].copy_from_slice(&address.to_le_bytes());
    entry[8..16].copy_from_slice(&function.to_le_bytes());
    entry[16] = kind;
    entry[18] = version;
    entry
}
