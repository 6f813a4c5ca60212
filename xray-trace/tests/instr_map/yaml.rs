//! The map as YAML, compared with `llvm-xray`.

use proptest::prelude::*;
use xray_trace::FileAddr;
use xray_trace::instr_map::{FunctionNames, InstrMap, MapError, Object, ObjectError, SledKind};

use crate::toolchain::{CLANG, CLANG_14, CLANGXX, LLD, LLVM_XRAY, STRIP, Workbench};

const NAMES: [(FunctionNames, &[&str]); 3] = [
    (FunctionNames::None, &[]),
    (FunctionNames::Symbols, &["--symbolize", "--no-demangle"]),
    (FunctionNames::Demangled, &["-s"]),
];

fn written(map: &InstrMap, names: FunctionNames) -> String {
    let mut out = Vec::new();
    map.write_yaml(names, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Checks that both print the same bytes.
fn check(bench: &Workbench, file: &str) {
    let map = InstrMap::read(&bench.read(file)).unwrap();
    assert!(!map.sleds().is_empty(), "{file}");
    for (names, options) in NAMES {
        let arguments = [&["extract", file], options].concat();
        let expected = bench.run(LLVM_XRAY, &arguments);
        assert_eq!(written(&map, names), expected, "{file} {names:?}");
    }
}

#[test]
fn maps_are_printed_as_llvm_prints_them() {
    let bench = Workbench::new();
    bench.write("p.c", super::compilers::C_PROGRAM);
    bench.write("p.cc", super::compilers::CXX_PROGRAM);
    bench.compile(CLANG, "p.c", "new", &[]);
    bench.compile(CLANG_14, "p.c", "old", &[]);
    bench.compile(CLANG, "p.c", "lib.so", &["-shared", "-fPIC"]);
    bench.compile(CLANG, "p.c", "debug", &["-g"]);
    bench.compile(CLANGXX, "p.cc", "cxx", &[]);
    bench.run(STRIP, &["-o", "stripped", "new"]);
    for file in ["new", "old", "lib.so", "debug", "cxx", "stripped"] {
        check(&bench, file);
    }
}

#[test]
fn names_are_quoted_as_llvm_quotes_them() {
    const ODD: [&str; 51] = [
        "plain",
        "a b",
        "a.b-c^d_e",
        "a/b",
        "a:b",
        "it's",
        "-dash",
        "-",
        "+",
        "+1",
        "?x",
        "?",
        "#x",
        "&x",
        "*x",
        "!x",
        "|x",
        ">x",
        "%x",
        "`x`",
        "~",
        "null",
        "Null",
        "nulL",
        "true",
        "TRUE",
        "tRUE",
        "yes",
        "0",
        "17",
        "1.5",
        "1.",
        ".5",
        ".x",
        "1e5",
        "1e",
        "1e+7x",
        "e5",
        "0x1F",
        "0xg",
        "0o17",
        "0o18",
        ".inf",
        "-.inf",
        ".nan",
        "x ",
        " x",
        "t\tt",
        "\u{1}x",
        "été",
        "a\\\\b",
    ];
    let bench = Workbench::new();
    let mut text = String::new();
    let mut map = String::from("        .section xray_instr_map, \"a\", @progbits\n");
    for name in ODD {
        text += &format!(
            "        .globl \"{name}\"\n        .type \"{name}\", @function\n\"{name}\": .fill 16, 1, 0x90\n        .size \"{name}\", 16\n"
        );
        map += &format!(
            "        .quad \"{name}\" - .\n        .quad \"{name}\" - .\n        .byte 0, 0, 2\n        .zero 13\n"
        );
    }
    bench.write("p.s", &format!("        .text\n{text}{map}"));
    bench.run(CLANG, &["-c", "p.s", "-o", "p.o"]);
    bench.run(LLD, &["--entry=plain", "p.o", "-o", "odd"]);
    check(&bench, "odd");
    let map = InstrMap::read(&bench.read("odd")).unwrap();
    assert_eq!(map.functions().len(), ODD.len());
    // Reading the file back gives the same names.
    let again = InstrMap::read(written(&map, FunctionNames::Symbols).as_bytes()).unwrap();
    let names = |map: &InstrMap| -> Vec<_> {
        map.functions()
            .iter()
            .map(|function| function.symbol.clone())
            .collect()
    };
    assert_eq!(names(&map), names(&again));
}

#[test]
fn convert_with_yaml_instrmap_any_spelling_of_a_map_is_read() {
    let bench = Workbench::new();
    bench.write(
        "odd.yaml",
        "# a comment\n---\n- { id: 7, address: 0x10, function: 0x10, kind: function-enter, always-instrument: true, function-name: 'a''b' }\n- id: 3\n  address: 0x0000000000000020\n  function: 32\n  kind: log-args-enter\n  always-instrument: false\n  function-name: \"x\\ty\"\n  version: 1\n- {\"id\": 0x7, address: 0b11000, function: 020, kind: function-exit, always-instrument: on}\n",
    );
    let map = InstrMap::read(&bench.read("odd.yaml")).unwrap();
    // The output of `llvm-xray` for it, which drops the names.
    let expected = bench.run(LLVM_XRAY, &["extract", "odd.yaml"]);
    assert_eq!(written(&map, FunctionNames::None), expected);
    assert_eq!(map.function(3).unwrap().name, "x\ty");
    assert_eq!(map.function(7).unwrap().address, FileAddr(16));
    assert_eq!(map.function(1), None);
    assert_eq!(map.functions()[0].name, "a'b");
    assert_eq!(map.sleds_of(&map.functions()[1])[0].version, 1);
}

#[test]
fn a_malformed_map_is_refused_with_its_place() {
    let entry = |fields: &str| format!("---\n- {{ {fields} }}\n");
    let good = "id: 1, address: 1, function: 1, kind: tail-exit, always-instrument: false";
    assert!(InstrMap::read(entry(good).as_bytes()).is_ok());
    for (text, message) in [
        (
            "int main;\n".to_owned(),
            "line 1, column 1: expected a list of sleds",
        ),
        ("--- [[".into(), "line 1, column 6: expected an entry"),
        (
            entry("id: 1"),
            "line 2, column 3: the field 'address' is missing",
        ),
        (
            entry(&format!("{good}, foo: 3")),
            "line 2, column 80: an entry has the unknown field 'foo'",
        ),
        (
            entry(&format!("{good}, id: 3")),
            "line 2, column 80: the field 'id' occurs twice",
        ),
        (
            entry(&good.replace("id: 1", "id: -1")),
            "line 2, column 9: '-1' is not a valid id",
        ),
        (
            entry(&good.replace("id: 1", "id: 2147483648")),
            "line 2, column 9: '2147483648' is not a valid id",
        ),
        (
            entry(&good.replace("tail", "head")),
            "line 2, column 43: 'head-exit' is not a valid kind",
        ),
        (
            entry(&good.replace("id: 1", "id: *a")),
            "line 2, column 9: not YAML: while parsing node, found unknown anchor",
        ),
        (
            format!("{}...\n---\n[]\n", entry(good)),
            "line 4, column 1: expected the end of the text",
        ),
    ] {
        let error = InstrMap::read(text.as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), message, "{text}");
    }
    for bytes in [&b""[..], b" \n", b"MZ\0\0", b"\xff\xfe"] {
        assert_eq!(InstrMap::read(bytes).unwrap_err(), MapError::Unknown);
    }
    assert_eq!(
        InstrMap::read(b"\x7fELF").unwrap_err(),
        MapError::Object(ObjectError::NotElf)
    );
}

/// `llvm-xray` writes a comma without quotes, although it ends a field there, and cannot read its
/// own output back.
#[test]
fn a_name_with_a_comma_is_quoted() {
    let text = "- { id: 1, address: 1, function: 1, kind: function-exit, always-instrument: true, function-name: 'a,b' }\n";
    let map = InstrMap::read(text.as_bytes()).unwrap();
    assert!(written(&map, FunctionNames::Symbols).contains("function-name: 'a,b' }"));
}

fn kinds() -> impl Strategy<Value = &'static str> {
    prop::sample::select(
        &[
            "function-enter",
            "function-exit",
            "tail-exit",
            "log-args-enter",
            "custom-event",
            "typed-event",
            "unknown-77",
        ][..],
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_written_map_is_read_back(
        rows in prop::collection::vec((0_u32..5, any::<u64>(), 0_u64..3, kinds(), any::<bool>(), 0_u8..4), 0..20),
        name in any::<String>(),
    ) {
        let mut text = "---\n".to_owned();
        for (id, address, function, kind, always, version) in rows {
            text += &format!("- {{ id: {id}, address: {address}, function: {function}, kind: {kind}, always-instrument: {always}, version: {version}, function-name: {} }}\n",
                serde_json::to_string(&name).unwrap());
        }
        let Ok(map) = InstrMap::read(format!("{text}{}", if text.len() == 4 { "[]" } else { "" }).as_bytes()) else {
            // JSON allows control characters that YAML does not.
            prop_assert!(name.chars().any(|c| c.is_control() || !('\u{0}'..'\u{d7ff}').contains(&c)), "{text}");
            return Ok(());
        };
        let once = written(&map, FunctionNames::Symbols);
        if map.sleds().is_empty() {
            return Ok(());
        }
        let again = InstrMap::read(once.as_bytes()).unwrap();
        prop_assert_eq!(map.sleds(), again.sleds());
        prop_assert_eq!(map.functions(), again.functions());
        prop_assert_eq!(once, written(&again, FunctionNames::Symbols));
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>(), at in any::<prop::sample::Index>()) {
        let _ = InstrMap::read(text.as_bytes());
        let mut whole = "---\n- { id: 1, address: 0x1, function: 0x1, kind: function-enter, always-instrument: true, function-name: a }\n...\n".to_owned();
        let place = at.index(whole.len());
        whole.insert_str(place, &text);
        let _ = InstrMap::read(whole.as_bytes());
    }
}

#[test]
fn a_map_of_an_object_is_the_objects() {
    let bench = Workbench::new();
    bench.write("p.c", super::compilers::C_PROGRAM);
    bench.compile(CLANG, "p.c", "p", &[]);
    let object = Object::parse(&bench.read("p")).unwrap();
    let map = InstrMap::from(object.clone());
    assert_eq!(map.sleds(), object.sleds());
    assert_eq!(map.functions(), object.functions());
    for function in object.functions() {
        assert_eq!(map.function(function.id), Some(function));
    }
    assert_eq!(map.function(0), None);
    assert!(
        map.sleds()
            .iter()
            .all(|sled| !matches!(sled.kind, SledKind::Unknown(_)))
    );
}

#[test]
fn the_maps_of_a_process_are_one_with_packed_ids() {
    let map = |ids: &[u32]| {
        let line = |id| {
            format!(
                "- {{ id: {id}, address: 0x{id:x}, function: 0x{id:x}, kind: function-enter, always-instrument: false, function-name: f{id}, version: 2 }}\n"
            )
        };
        let lines: String = ids.iter().map(line).collect();
        InstrMap::read(format!("---\n{lines}...\n").as_bytes()).unwrap()
    };
    let objects = [
        (0, map(&[1, 0xff_ffff])),
        (1, map(&[1, 0x100_0000])),
        (255, map(&[3])),
        (256, map(&[1, 2])),
    ];
    let (all, left_out) = InstrMap::of_process(objects);
    assert_eq!(left_out, 3);
    let expected = [
        (1, "f1"),
        (0xff_ffff, "f16777215"),
        (0x100_0001, "f1"),
        (0xff00_0003, "f3"),
    ];
    for (id, name) in expected {
        let function = all.function(id).unwrap();
        assert_eq!(function.name, name);
        assert_eq!(all.sleds_of(function)[0].address, function.address);
    }
    assert_eq!((all.functions().len(), all.sleds().len()), (4, 4));
}
