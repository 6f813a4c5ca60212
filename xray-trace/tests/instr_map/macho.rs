//! Mach-O files: linked ones compared with `llvm-xray extract`, and files still to be linked, whose
//! relocations LLVM's tool omits.

use std::collections::BTreeMap;

use xray_trace::instr_map::{
    FunctionIndex, FunctionNames, InstrMap, Machine, MapError, Object, ObjectError, ObjectKind,
    SledKind, Warning,
};

use crate::toolchain::{CLANG, CLANGXX, LD64, LLVM_XRAY, STRIP_LLVM, Workbench};

/// The names of the C++ functions are local, weak and global. The program includes no header.
const PROGRAM: &str = r#"
extern "C" __attribute__((noinline)) int leaf(int x) { __asm__ volatile(""); return x + 1; }
__attribute__((noinline)) static int hidden(int x) { __asm__ volatile("" ::: "memory"); return x - 7; }
template <class T> __attribute__((noinline)) T larger(T a, T b) { __asm__ volatile(""); return a < b ? b : a; }
inline __attribute__((noinline)) int twice(int x) { int y = leaf(x); __asm__ volatile("" ::: "memory"); return y * 2 + leaf(y); }
struct A { int n; __attribute__((noinline, xray_always_instrument)) int get(int x) const { __asm__ volatile(""); return n + x; } };
extern "C" int main(int c) {
  A a{c};
  int sum = twice(c) + hidden(c) + larger(c, 2) + (int)larger(1L, (long)c) + a.get(c);
  __asm__ volatile("" ::: "memory");
  return sum + 1;
}
"#;

const TARGETS: [(&str, Machine, [&[u8]; 2]); 2] = [
    ("x86_64", Machine::X86_64, [b"\xeb\x09", b"\xc3"]),
    ("arm64", Machine::Aarch64, [b"\x08\0\0\x14"; 2]),
];

fn compile(bench: &Workbench, processor: &str, source: &str, arguments: &[&str]) {
    let target = format!("--target={processor}-apple-macos13");
    let all = [&[target.as_str(), "-c", "-ffreestanding"], arguments].concat();
    bench.compile(CLANGXX, source, "p.o", &all);
}

fn link(bench: &Workbench, processor: &str, out: &str, arguments: &[&str]) {
    let all = [
        &["-arch", processor, "-platform_version", "macos", "13", "13"][..],
        &["-undefined", "dynamic_lookup", "p.o", "-o", out],
        arguments,
    ];
    bench.run(LD64, &all.concat());
}

fn written(object: &Object, names: FunctionNames) -> String {
    let mut out = Vec::new();
    let map = InstrMap::from(object.clone());
    map.write_yaml(names, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The name of each function, and its sleds as distances from the function.
fn shape(object: &Object) -> BTreeMap<String, Vec<(u64, SledKind, bool)>> {
    let functions = object.functions().iter();
    let shapes = functions.map(|function| {
        let sleds = object.sleds_of(function).iter().map(|sled| {
            let from = sled.address.offset_from(function.address).unwrap();
            (from, sled.kind, sled.always_instrument)
        });
        (function.name.to_string(), sleds.collect())
    });
    shapes.collect()
}

/// Checks that every sled has the instruction that the compiler puts there.
fn check_heads(object: &Object, file: &[u8], heads: [&[u8]; 2]) {
    for sled in object.sleds() {
        let at = usize::try_from(object.address_to_offset(sled.address).unwrap()).unwrap();
        let head = heads[usize::from(sled.kind == SledKind::Exit)];
        assert!(file[at..].starts_with(head), "{sled:?}");
    }
}

/// Upstream's `extract-instrmap-macho`.
#[test]
fn extract_instrmap_macho() {
    let bench = Workbench::new();
    bench.write("p.cc", PROGRAM);
    for (processor, machine, heads) in TARGETS {
        for options in [&[][..], &["-fno-xray-function-index"]] {
            compile(&bench, processor, "p.cc", options);
            let bytes = bench.read("p.o");
            let unlinked = Object::parse_any(&bytes).unwrap();
            assert_eq!(unlinked.kind(), ObjectKind::Relocatable);
            assert_eq!(unlinked.warnings(), [], "{processor}");
            check_heads(&unlinked, &bytes, heads);
            for (out, kind, arguments) in [
                ("pie", ObjectKind::PieExecutable, &["-e", "_main"][..]),
                ("p.dylib", ObjectKind::SharedLibrary, &["-dylib"]),
                ("p.bundle", ObjectKind::SharedLibrary, &["-bundle"]),
                (
                    "old.dylib",
                    ObjectKind::SharedLibrary,
                    &["-dylib", "-no_fixup_chains"],
                ),
                (
                    "stripped",
                    ObjectKind::PieExecutable,
                    &["-e", "_main", "-dead_strip"],
                ),
            ] {
                let why = format!("{processor} {out} {options:?}");
                link(&bench, processor, out, arguments);
                let bytes = bench.read(out);
                let object = Object::parse_any(&bytes).unwrap();
                assert_eq!((object.machine(), object.kind()), (machine, kind), "{why}");
                assert_eq!(object.warnings(), [], "{why}");
                let index = match options.is_empty() {
                    true => FunctionIndex::Distances,
                    false => FunctionIndex::Absent,
                };
                assert_eq!((object.index(), unlinked.index()), (index, index), "{why}");
                assert_eq!(shape(&object), shape(&unlinked), "{why}");
                check_heads(&object, &bytes, heads);
                assert!(
                    object.build_id().is_some_and(|id| id.0.len() == 16),
                    "{why}"
                );
                for (names, arguments) in [
                    (FunctionNames::None, &["extract", out][..]),
                    (FunctionNames::Demangled, &["extract", "-s", out]),
                    (
                        FunctionNames::Symbols,
                        &["extract", "-s", "--no-demangle", out],
                    ),
                ] {
                    let yaml = bench.run(LLVM_XRAY, arguments);
                    assert_eq!(written(&object, names), yaml, "{why}");
                }
            }
        }
    }
}

#[test]
fn a_library_and_a_program_say_who_they_are() {
    let bench = Workbench::new();
    bench.write("p.cc", PROGRAM);
    compile(&bench, "x86_64", "p.cc", &[]);
    link(
        &bench,
        "x86_64",
        "p.dylib",
        &["-dylib", "-install_name", "@rpath/p.3.dylib"],
    );
    link(&bench, "x86_64", "fixed", &["-e", "_main", "-no_pie"]);
    let library = Object::parse_any(&bench.read("p.dylib")).unwrap();
    assert_eq!(library.soname(), Some("@rpath/p.3.dylib"));
    assert!(!library.interpreter());
    let program = Object::parse_any(&bench.read("fixed")).unwrap();
    assert_eq!(program.kind(), ObjectKind::Executable);
    assert!(program.interpreter());
    // Whether the file can be traced is another question.
    let bytes = bench.read("fixed");
    assert_eq!(Object::parse(&bytes).unwrap_err(), ObjectError::NotElf);

    bench.run(STRIP_LLVM, &["-x", "p.dylib", "-o", "stripped.dylib"]);
    let mut stripped = Object::parse_any(&bench.read("stripped.dylib")).unwrap();
    let named = |object: &Object| {
        object
            .functions()
            .iter()
            .filter(|it| it.symbol.is_some())
            .count()
    };
    assert!(named(&stripped) < 7);
    stripped.add_symbols_from(&bench.read("p.dylib")).unwrap();
    assert_eq!(stripped.functions(), library.functions());
    let other = stripped.add_symbols_from(&bytes).unwrap_err();
    assert!(matches!(other, ObjectError::OtherBuild { .. }), "{other}");
}

/// Entries of versions 0, 1 and 2 in one map. The first two are pointers, which the loader finds in
/// chains, or by a list.
#[test]
fn pointers_are_followed_in_every_layout() {
    let bench = Workbench::new();
    // The map is longer than a page, so that it has several chains.
    let filler: String = (0..600)
        .map(|n| format!(".quad _one, _one\n.byte 0, 1, {}\n.zero 13\n", n % 2))
        .collect();
    let text = format!(
        ".subsections_via_symbols\n.text\n.globl _one\n_one: .long 1\nLexit: .long 2\n.globl _two\n_two: .long 3\n\
         .section __DATA,xray_instr_map\n.globl _map\n_map:\n{filler}\
         .quad _one, _one\n.byte 0, 1, 0\n.zero 13\n.quad _one + 4, _one\n.byte 1, 1, 1\n.zero 13\n\
         1: .quad _two - 1b\n2: .quad _two - 2b\n.byte 0, 0, 2\n.zero 13\n\
         .section __DATA,xray_fn_idx\n.globl _idx\n_idx:\n.quad _map, _map + {}, _map + {}, _map + {}\n",
        602 * 32,
        602 * 32,
        603 * 32
    );
    bench.write("p.s", &text);
    for (processor, ..) in TARGETS {
        let target = format!("--target={processor}-apple-macos13");
        bench.run(CLANG, &[&target, "-c", "p.s", "-o", "p.o"]);
        for (out, arguments) in [
            ("chained", &["-dylib", "-fixup_chains"][..]),
            ("listed", &["-dylib", "-no_fixup_chains"]),
        ] {
            link(&bench, processor, out, arguments);
            for file in ["p.o", out] {
                let object = Object::parse_any(&bench.read(file)).unwrap();
                let why = format!("{processor} {file}");
                assert_eq!(object.warnings(), [], "{why}");
                assert_eq!(object.index(), FunctionIndex::Addresses, "{why}");
                let [one, two] = object.functions() else {
                    panic!("{why}: {:?}", object.functions());
                };
                assert_eq!((one.name.as_str(), two.name.as_str()), ("one", "two"));
                let sleds = object.sleds_of(one);
                assert_eq!(sleds.len(), 602, "{why}");
                let (last, rest) = sleds.split_last().unwrap();
                assert!(rest.iter().all(|sled| sled.address == one.address), "{why}");
                assert_eq!(last.address.offset_from(one.address), Some(4), "{why}");
                assert_eq!(object.sleds_of(two)[0].address, two.address, "{why}");
            }
            // LLVM's tool prints the values in the file, which are right if the loader has no
            // pointers to follow.
            if out == "listed" {
                let object = Object::parse_any(&bench.read(out)).unwrap();
                let yaml = bench.run(LLVM_XRAY, &["extract", "-s", out]);
                assert_eq!(written(&object, FunctionNames::Demangled), yaml);
            }
        }
    }
}

#[test]
fn entries_of_symbols_elsewhere_are_reported() {
    let bench = Workbench::new();
    let map = ".section __DATA,xray_instr_map\n.quad _gone, _gone\n.byte 0, 0, 1\n.zero 13\n";
    bench.write("p.s", map);
    for (processor, ..) in TARGETS {
        let target = format!("--target={processor}-apple-macos13");
        bench.run(CLANG, &[&target, "-c", "p.s", "-o", "p.o"]);
        link(&bench, processor, "p.dylib", &["-dylib", "-fixup_chains"]);
        for file in ["p.o", "p.dylib"] {
            let object = Object::parse_any(&bench.read(file)).unwrap();
            let reported = Warning::Unrelocated { count: 1 };
            assert!(object.warnings().contains(&reported), "{processor} {file}");
        }
    }
}

#[test]
fn other_files_are_refused_by_what_they_are() {
    let bench = Workbench::new();
    bench.write("p.c", "int main(void) { return 0; }\n");
    for (target, why) in [
        ("i386-apple-macos10.13", ObjectError::OtherMachO),
        ("arm64_32-apple-watchos7", ObjectError::OtherMachO),
        ("x86_64-apple-macos13", ObjectError::NoMap),
    ] {
        let target = format!("--target={target}");
        bench.run(CLANG, &[&target, "-c", "p.c", "-o", "p.o"]);
        let error = InstrMap::read(&bench.read("p.o")).unwrap_err();
        assert_eq!(error, MapError::Object(why));
    }
    let mut file = bench.read("p.o");
    for (at, value, why) in [
        (4, 18, ObjectError::MachOProcessor(0x0100_0012)),
        (12, 4, ObjectError::MachOType(4)),
        (16, 200, ObjectError::BadHeader),
    ] {
        let before = std::mem::replace(&mut file[at], value);
        assert_eq!(Object::parse_any(&file).unwrap_err(), why);
        file[at] = before;
    }
    file[..4].copy_from_slice(&[0xca, 0xfe, 0xba, 0xbe]);
    let error = InstrMap::read(&file).unwrap_err().to_string();
    assert!(error.contains("lipo -thin"), "{error}");
}
