//! Maps that today's compilers do not write: old versions, mixed versions, wrong indexes.

use xray_trace::FileAddr;
use xray_trace::instr_map::{
    FunctionIndex, Object, ObjectError, SledKind, SourceError, SourceMap, Warning,
};

use crate::image::{BASE, Image, entry};
use crate::toolchain::{CLANG, Workbench};

/// Two functions of two sleds each. The linker and the dynamic linker fill in the map's fields.
const CODE: &str = r#"
        .text
        .globl first
        .type first, @function
first:
.Lfirst_entry:  .byte 0xeb, 9
        .fill 9, 1, 0x90
.Lfirst_exit:   ret
        .fill 10, 1, 0x90
        .size first, . - first
        .globl second
        .type second, @function
second: .byte 0xf3, 0x0f, 0x1e, 0xfa
.Lsecond_entry: .byte 0xeb, 9
        .fill 9, 1, 0x90
.Lsecond_exit:  ret
        .fill 10, 1, 0x90
        .size second, . - second
        .globl main
main:   ret
        .section .note.GNU-stack, "", @progbits
        .section xray_instr_map, "aw", @progbits
map:
"#;

/// The assembler line for one entry.
fn map_line(version: u8, sled: &str, function: &str, kind: u8) -> String {
    let from = if version >= 2 { " - ." } else { "" };
    format!(
        "        .quad {sled}{from}\n        .quad {function}{from}\n        .byte {kind}, 1, {version}\n        .zero 13\n"
    )
}

fn map_lines(versions: [u8; 4]) -> String {
    let rows = [
        (".Lfirst_entry", "first", 0),
        (".Lfirst_exit", "first", 1),
        (".Lsecond_entry", "second", 3),
        (".Lsecond_exit", "second", 1),
    ];
    let lines = versions.into_iter().zip(rows);
    lines
        .map(|(version, (sled, function, kind))| map_line(version, sled, function, kind))
        .collect()
}

fn link(bench: &Workbench, text: &str, arguments: &[&str]) -> Object {
    bench.write("p.s", text);
    let all: Vec<_> = arguments
        .iter()
        .copied()
        .chain(["p.s", "-o", "out"])
        .collect();
    bench.run(CLANG, &all);
    Object::parse(&bench.read("out")).unwrap()
}

#[test]
fn entries_are_read_by_their_own_version() {
    let bench = Workbench::new();
    for versions in [
        [0; 4],
        [1; 4],
        [2; 4],
        [0, 0, 1, 1],
        [0, 2, 2, 1],
        [2, 1, 0, 2],
    ] {
        for arguments in [
            &["-pie"][..],
            &["-no-pie"],
            &["-shared"],
            &["-shared", "-Wl,-Bsymbolic"],
        ] {
            let why = format!("{versions:?} {arguments:?}");
            // Distances in the assembler may not refer to symbols that another module could
            // replace.
            let text = format!("{CODE}{}", map_lines(versions));
            let text = if arguments[0] == "-shared" && versions.contains(&2) {
                text.replace(".globl first", ".hidden first\n.globl first")
                    .replace(".globl second", ".hidden second\n.globl second")
            } else {
                text
            };
            let object = link(&bench, &text, arguments);
            assert_eq!(object.warnings(), [], "{why}");
            assert_eq!(object.index(), FunctionIndex::Absent);
            let [first, second] = object.functions() else {
                panic!("{why}: {object:?}")
            };
            assert_eq!(
                (first.name.as_str(), second.name.as_str()),
                ("first", "second"),
                "{why}"
            );
            assert_eq!((first.id, second.id), (1, 2));
            assert_eq!((first.size, second.size), (22, 26));
            assert_eq!(second.address.offset_from(first.address), Some(22), "{why}");
            let found: Vec<_> = object
                .sleds()
                .iter()
                .map(|sled| {
                    (
                        sled.address.offset_from(first.address).unwrap(),
                        sled.kind,
                        sled.version,
                    )
                })
                .collect();
            let kinds = [
                (0, SledKind::Entry),
                (11, SledKind::Exit),
                (26, SledKind::EntryWithArgument),
                (37, SledKind::Exit),
            ];
            let expected: Vec<_> = kinds
                .iter()
                .zip(versions)
                .map(|(&(at, kind), version)| (at, kind, version))
                .collect();
            assert_eq!(found, expected, "{why}");
        }
    }
}

#[test]
fn packed_relocations_are_understood() {
    let bench = Workbench::new();
    let text = format!("{CODE}{}", map_lines([0; 4]));
    let object = link(&bench, &text, &["-pie", "-Wl,-z,pack-relative-relocs"]);
    assert_eq!(object.warnings(), []);
    assert_eq!(object.functions()[1].name, "second");
}

#[test]
fn the_map_decides_when_the_index_disagrees() {
    let bench = Workbench::new();
    let index = |lines: &str| {
        format!(
            "{CODE}{}        .section xray_fn_idx, \"aw\", @progbits\n{lines}",
            map_lines([2; 4])
        )
    };
    for (lines, expected) in [
        (
            ".quad map - .\n.quad 2\n.quad map + 64 - .\n.quad 2\n",
            FunctionIndex::Distances,
        ),
        (
            ".quad map\n.quad map + 64\n.quad map + 64\n.quad map + 128\n",
            FunctionIndex::Addresses,
        ),
        (
            ".quad map - .\n.quad 2\n.quad map + 64 - .\n.quad 3\n",
            FunctionIndex::Disagrees,
        ),
        (".quad map - .\n.quad 4\n", FunctionIndex::Disagrees),
        (".quad map\n.quad map + 64\n", FunctionIndex::Disagrees),
        (
            ".quad map - .\n.quad 2\n.quad map + 64 - .\n.quad 2\n.quad 0\n.quad 0\n",
            FunctionIndex::Disagrees,
        ),
        (".quad 7\n.byte 1\n", FunctionIndex::Disagrees),
    ] {
        let object = link(&bench, &index(lines), &["-pie"]);
        assert_eq!(object.index(), expected, "{lines}");
        assert_eq!(object.functions().len(), 2);
        let warned = matches!(
            object.warnings(),
            [Warning::IndexDisagrees { functions: 2, .. }]
        );
        assert_eq!(
            warned,
            expected == FunctionIndex::Disagrees,
            "{lines}: {:?}",
            object.warnings()
        );
    }
}

#[test]
fn ids_count_groups_of_the_map() {
    let map: Vec<u8> = [(0, 0x100), (8, 0x100), (0x20, 0x120), (0x30, 0x100)]
        .into_iter()
        .flat_map(|(sled, function)| entry(BASE + sled, BASE + function, 0, 0))
        .collect();
    let object = Object::parse(&Image::default().with("xray_instr_map", map).build()).unwrap();
    let found: Vec<_> = object
        .functions()
        .iter()
        .map(|f| (f.id, f.address.0 - BASE, f.sleds.clone()))
        .collect();
    assert_eq!(
        found,
        [(1, 0x100, 0..2), (2, 0x120, 2..3), (3, 0x100, 3..4)]
    );
    assert_eq!(object.functions()[0].name, "0x400100");
}

#[test]
fn distances_are_counted_from_their_own_field() {
    let map = Image::first_address();
    let data = entry(
        (BASE + 0x10).wrapping_sub(map),
        (BASE + 8).wrapping_sub(map + 8),
        1,
        2,
    );
    let object = Object::parse(
        &Image::default()
            .with("xray_instr_map", data.to_vec())
            .build(),
    )
    .unwrap();
    let sled = &object.sleds()[0];
    assert_eq!(
        (sled.address, sled.function),
        (FileAddr(BASE + 0x10), FileAddr(BASE + 8))
    );
    assert_eq!(object.address_to_offset(sled.address), Some(0x10));
    assert_eq!(object.address_to_offset(FileAddr(BASE - 1)), None);
    assert_eq!(object.address_to_offset(FileAddr(u64::MAX)), None);
}

#[test]
fn oddities_are_reported_and_read_over() {
    let map = [
        entry(BASE, BASE, 0, 0),
        entry(1, BASE, 0, 0),
        entry(2, BASE, 1, 1),
        entry(BASE, BASE, 9, 0),
    ];
    let object = Object::parse(
        &Image::default()
            .with("xray_instr_map", map.concat())
            .build(),
    )
    .unwrap();
    assert_eq!(
        object.warnings(),
        [
            Warning::OutsideCode {
                count: 2,
                first: FileAddr(1)
            },
            Warning::UnknownKind {
                count: 1,
                first: FileAddr(BASE),
                kind: 9
            },
        ]
    );
    assert_eq!(object.sleds()[3].kind, SledKind::Unknown(9));
    assert_eq!(
        object.warnings()[0].to_string(),
        "2 sleds lie outside executable memory, the first at 0x1"
    );
}

#[test]
fn broken_files_are_refused_with_their_numbers() {
    let good = || {
        Image::default()
            .with("xray_instr_map", entry(BASE, BASE, 0, 0).to_vec())
            .build()
    };
    let with_map = |map: Vec<u8>| Image::default().with("xray_instr_map", map).build();
    let patched = |at: usize, bytes: &[u8]| {
        let mut file = good();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    assert!(Object::parse(&good()).is_ok());
    let size = good().len();
    for (file, message) in [
        (vec![], "not an ELF file".to_owned()),
        (b"\x7fELF".to_vec(), "not an ELF file".into()),
        (patched(0, b"MZ"), "not an ELF file".into()),
        (
            patched(4, &[1]),
            "a 32-bit ELF file; only 64-bit files can be traced".into(),
        ),
        (patched(4, &[3]), "damaged header".into()),
        (patched(5, &[7]), "damaged header".into()),
        (good()[..40].to_vec(), "damaged header".into()),
        (
            patched(16, &[1, 0]),
            "a relocatable object file; link it first".into(),
        ),
        (
            patched(16, &[4, 0]),
            "ELF type 4 is neither a program nor a library".into(),
        ),
        (
            patched(32, &[0xff; 8]),
            format!(
                "program headers at offset 0xffffffffffffffff do not lie in the file of {size:#x} bytes"
            ),
        ),
        (
            good()[..size - 64].to_vec(),
            format!(
                "section headers at offset {:#x} do not lie in the file of {:#x} bytes",
                size - 192,
                size - 64
            ),
        ),
        (
            patched(40, &[0; 8]),
            "the file has no section headers, so its instrumentation map cannot be found".into(),
        ),
        (
            with_map(vec![0; 31]),
            "xray_instr_map has 0x1f bytes, which is not a multiple of 32".into(),
        ),
        (
            with_map(vec![]),
            "no xray_instr_map section: not compiled with -fxray-instrument".into(),
        ),
        (
            with_map([entry(BASE, BASE, 0, 2), entry(0, 0, 0, 3)].concat()),
            "entry 1 of xray_instr_map has the unknown version 3".into(),
        ),
        (
            Image::default().with("other", vec![0; 32]).build(),
            "no xray_instr_map section: not compiled with -fxray-instrument".into(),
        ),
    ] {
        assert_eq!(Object::parse(&file).unwrap_err().to_string(), message);
    }
}

#[test]
fn a_map_at_the_end_of_the_address_space_is_refused() {
    let mut file = Image::default()
        .with("xray_instr_map", entry(0, 0, 0, 2).to_vec())
        .build();
    let header = file.len() - 128;
    file[header + 16..header + 24].copy_from_slice(&(u64::MAX - 8).to_le_bytes());
    assert_eq!(
        Object::parse(&file).unwrap_err(),
        ObjectError::MapAddress {
            address: FileAddr(u64::MAX - 8),
            size: 32
        }
    );
}

#[test]
fn a_file_without_line_tables_says_so() {
    let file = Image::default().with("other", vec![]).build();
    assert_eq!(
        SourceMap::parse(&file, []).unwrap_err(),
        SourceError::NoDebugInfo
    );
    let error = SourceMap::parse(b"text", []).unwrap_err();
    assert_eq!(error, SourceError::Object(ObjectError::NotElf));
}
