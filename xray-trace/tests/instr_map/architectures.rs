//! Maps for every processor with sleds in LLVM: files still to be linked, and linked ones.
//!
//! The results for a linked file are compared with `llvm-xray extract` if that supports the
//! processor, and in all cases with the code: each sled begins with the instruction that the
//! compiler puts there. The results for a file still to be linked are compared with those for the
//! linked file.

use std::collections::BTreeMap;

use xray_trace::FileAddr;
use xray_trace::instr_map::{
    FunctionIndex, FunctionNames, InstrMap, Machine, MapError, Object, ObjectError, ObjectKind,
    SledKind, Warning,
};

use crate::toolchain::{CLANG, CLANGXX, LLD, LLVM_XRAY, STRIP_LLVM, Workbench};

/// No tail calls, because clang 19 cannot compile them with sleds for PowerPC. Templates and inline
/// functions have a COMDAT group each. The program includes no header, so that no library of the
/// target is needed.
const PROGRAM: &str = r#"
extern "C" __attribute__((noinline)) int leaf(int x) { __asm__ volatile(""); return x + 1; }
__attribute__((noinline)) static int hidden(int x) { __asm__ volatile("" ::: "memory"); return x - 7; }
template <class T> __attribute__((noinline)) T larger(T a, T b) { __asm__ volatile(""); return a < b ? b : a; }
inline __attribute__((noinline)) int twice(int x) { int y = leaf(x); __asm__ volatile("" ::: "memory"); return y * 2 + leaf(y); }
struct A { int n; __attribute__((noinline, xray_always_instrument)) int get(int x) const { __asm__ volatile(""); return n + x; } };
extern "C" int start(int c) {
  A a{c};
  int sum = twice(c) + hidden(c) + larger(c, 2) + (int)larger(1L, (long)c) + a.get(c);
  __asm__ volatile("" ::: "memory");
  return sum + 1;
}
"#;

/// The sleds of PowerPC call the runtime.
const STUBS: &str = ".globl __xray_FunctionEntry\n__xray_FunctionEntry:\n.globl __xray_FunctionExit\n__xray_FunctionExit:\n.globl memcpy\nmemcpy:\n.long 0\n";

const FUNCTIONS: [&str; 7] = [
    "A::get(int) const",
    "hidden(int)",
    "int larger<int>(int, int)",
    "leaf",
    "long larger<long>(long, long)",
    "start",
    "twice(int)",
];

struct Target {
    triple: &'static str,
    machine: Machine,
    /// The first bytes of entry sleds, and of exit sleds.
    heads: [&'static [u8]; 2],
    /// True if `llvm-xray` can read a linked file.
    llvm_reads: bool,
}

const fn target(
    triple: &'static str,
    machine: Machine,
    heads: [&'static [u8]; 2],
    llvm_reads: bool,
) -> Target {
    Target {
        triple,
        machine,
        heads,
        llvm_reads,
    }
}

const TARGETS: [Target; 12] = [
    target(
        "x86_64-linux-gnu",
        Machine::X86_64,
        [b"\xeb\x09", b"\xc3"],
        true,
    ),
    target(
        "x86_64-linux-gnux32",
        Machine::X86_64,
        [b"\xeb\x09", b"\xc3"],
        false,
    ),
    target(
        "aarch64-linux-gnu",
        Machine::Aarch64,
        [b"\x08\0\0\x14"; 2],
        true,
    ),
    target(
        "armv7-linux-gnueabihf",
        Machine::Arm,
        [b"\x05\0\0\xea"; 2],
        true,
    ),
    target(
        "powerpc64le-linux-gnu",
        Machine::Ppc64,
        [b"\x1c\0\0\x48", b"\x20\0\x80\x4e"],
        true,
    ),
    target("mips-linux-gnu", Machine::Mips, [b"\x10\0\0\x0b"; 2], false),
    target(
        "mipsel-linux-gnu",
        Machine::Mips,
        [b"\x0b\0\0\x10"; 2],
        false,
    ),
    target(
        "mips64-linux-gnuabi64",
        Machine::Mips,
        [b"\x10\0\0\x0f"; 2],
        false,
    ),
    target(
        "mips64el-linux-gnuabi64",
        Machine::Mips,
        [b"\x0f\0\0\x10"; 2],
        false,
    ),
    target(
        "mips64-linux-gnuabin32",
        Machine::Mips,
        [b"\x10\0\0\x0f"; 2],
        false,
    ),
    target(
        "loongarch64-linux-gnu",
        Machine::LoongArch,
        [b"\0\x30\0\x50"; 2],
        true,
    ),
    target(
        "hexagon-linux-musl",
        Machine::Hexagon,
        [b"\x0a\xc0\0\x58"; 2],
        false,
    ),
];

fn compile(bench: &Workbench, triple: &str, source: &str, out: &str, arguments: &[&str]) {
    let target = format!("--target={triple}");
    let all = [&[target.as_str(), "-c", "-ffreestanding"], arguments].concat();
    bench.compile(CLANGXX, source, out, &all);
}

fn assemble(bench: &Workbench, triple: &str, text: &str, out: &str) {
    bench.write("p.s", text);
    let target = format!("--target={triple}");
    bench.run(CLANG, &[&target, "-c", "p.s", "-o", out]);
}

/// The name of each function, and its sleds: distance from the function, kind, whether the source
/// asked for it, and version.
fn shape(object: &Object) -> BTreeMap<String, Vec<(u64, SledKind, bool, u8)>> {
    object
        .functions()
        .iter()
        .map(|function| {
            let sleds = object.sleds_of(function).iter().map(|sled| {
                let from = sled.address.offset_from(function.address).unwrap();
                (from, sled.kind, sled.always_instrument, sled.version)
            });
            (function.name.to_string(), sleds.collect())
        })
        .collect()
}

/// Checks that every sled of a linked file begins with its head.
fn check_heads(target: &Target, object: &Object, file: &[u8]) {
    for sled in object.sleds() {
        let at = usize::try_from(object.address_to_offset(sled.address).unwrap()).unwrap();
        let head = match sled.kind {
            SledKind::Entry => target.heads[0],
            SledKind::Exit => target.heads[1],
            _ => panic!("{sled:?}"),
        };
        assert!(file[at..].starts_with(head), "{} {sled:?}", target.triple);
    }
}

#[test]
fn every_processor_is_read_before_and_after_linking() {
    let bench = Workbench::new();
    bench.write("p.cc", PROGRAM);
    for target in &TARGETS {
        let triple = target.triple;
        assemble(&bench, triple, STUBS, "stubs.o");
        for (arguments, what) in [
            (&[][..], "one section of code"),
            (&["-ffunction-sections"], "sections"),
            (&["-fno-xray-function-index"], "no index"),
        ] {
            compile(&bench, triple, "p.cc", "p.o", arguments);
            bench.run(LLD, &["-e", "start", "p.o", "stubs.o", "-o", "linked"]);
            bench.run(LLD, &["-r", "p.o", "stubs.o", "-o", "again.o"]);
            let bytes = bench.read("linked");
            let linked = Object::parse_any(&bytes).unwrap();
            check_heads(target, &linked, &bytes);
            assert_eq!(linked.kind(), ObjectKind::Executable, "{triple}");
            let expected = shape(&linked);
            assert!(expected.keys().eq(FUNCTIONS), "{triple}: {expected:?}");
            if target.llvm_reads {
                let yaml = bench.run(LLVM_XRAY, &["extract", "linked", "-s"]);
                assert_eq!(written(&linked), yaml, "{triple} {what}");
            }
            for file in ["p.o", "again.o"] {
                let object = Object::parse_any(&bench.read(file)).unwrap();
                assert_eq!(object.kind(), ObjectKind::Relocatable);
                assert_eq!(object.machine(), target.machine);
                assert_eq!(shape(&object), expected, "{triple} {what} {file}");
                assert!(
                    object
                        .functions()
                        .iter()
                        .all(|function| function.section > 0)
                );
            }
            for file in ["linked", "p.o", "again.o"] {
                let object = Object::parse_any(&bench.read(file)).unwrap();
                let index = match what {
                    "no index" => FunctionIndex::Absent,
                    _ => FunctionIndex::Distances,
                };
                assert_eq!(object.index(), index, "{triple} {what} {file}");
                assert_eq!(object.warnings(), [], "{triple} {what} {file}");
                let ids: Vec<_> = object.functions().iter().map(|it| it.id).collect();
                assert!(ids.into_iter().eq(1..=7), "{triple} {what} {file}");
            }
            bench.run(STRIP_LLVM, &["--strip-all", "linked", "-o", "stripped"]);
            let stripped = Object::parse_any(&bench.read("stripped")).unwrap();
            assert_eq!(stripped.sleds(), linked.sleds(), "{triple} {what}");
        }
    }
}

fn written(object: &Object) -> String {
    let mut out = Vec::new();
    let map = InstrMap::from(object.clone());
    map.write_yaml(FunctionNames::Demangled, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// `llvm-xray` reads a file still to be linked correctly if it has one function and nothing else to
/// relocate.
#[test]
fn a_file_of_one_function_is_printed_as_llvm_prints_it() {
    let bench = Workbench::new();
    bench.write(
        "p.cc",
        "extern \"C\" int leaf(int x) { __asm__ volatile(\"\"); return x + 1; }\n",
    );
    for triple in [
        "x86_64-linux-gnu",
        "aarch64-linux-gnu",
        "powerpc64le-linux-gnu",
    ] {
        compile(&bench, triple, "p.cc", "p.o", &["-ffunction-sections"]);
        let yaml = bench.run(LLVM_XRAY, &["extract", "p.o", "-s"]);
        let object = Object::parse_any(&bench.read("p.o")).unwrap();
        assert_eq!(written(&object), yaml, "{triple}");
    }
}

/// RISC-V and SystemZ, for which clang 19 makes no sleds.
const BY_HAND: &str = "
        .section .text.one,\"ax\",%progbits
        .globl one
        .hidden one
        .type one,%function
one:    .long 0x13131313
.Lexit: .long 0x14141414
        .size one, .-one
        .section .text.two,\"ax\",%progbits
        .globl two
        .hidden two
        .type two,%function
two:    .long 0x15151515
        .long 0x13131313
        .size two, .-two
";

fn entries(version: u8, function: &str, sleds: &[(&str, u8)], word: u8) -> String {
    let (directive, rest) = if word == 4 {
        (".long", 5)
    } else {
        (".quad", 13)
    };
    let mut text = format!("        .section xray_instr_map,\"awo\",%progbits,.text.{function}\n");
    for (sled, kind) in sleds {
        // A label of its own for each word, as LLVM writes it.
        for target in [*sled, function] {
            text += &match version {
                2 => format!("1:      {directive} {target} - 1b\n"),
                _ => format!("        {directive} {target}\n"),
            };
        }
        text += &format!("        .byte {kind}, 1, {version}\n        .zero {rest}\n");
    }
    text
}

#[test]
fn processors_that_clang_19_makes_no_sleds_for_are_read() {
    let bench = Workbench::new();
    let rows = [
        ("riscv64-linux-gnu", Machine::RiscV, 8),
        ("riscv32-linux-gnu", Machine::RiscV, 4),
        ("s390x-linux-gnu", Machine::S390, 8),
        // The processors with sleds again, in versions that clang 19 does not write any more.
        ("x86_64-linux-gnu", Machine::X86_64, 8),
        ("x86_64-linux-gnux32", Machine::X86_64, 4),
        ("aarch64-linux-gnu", Machine::Aarch64, 8),
        ("armv7-linux-gnueabihf", Machine::Arm, 4),
        ("powerpc64le-linux-gnu", Machine::Ppc64, 8),
        ("mips-linux-gnu", Machine::Mips, 4),
        ("mips64-linux-gnuabi64", Machine::Mips, 8),
        ("mips64el-linux-gnuabi64", Machine::Mips, 8),
        ("loongarch64-linux-gnu", Machine::LoongArch, 8),
        ("hexagon-linux-musl", Machine::Hexagon, 4),
    ];
    for (triple, machine, word) in rows {
        for versions in [[0, 0], [1, 2], [2, 0], [2, 2]] {
            let text = format!(
                "{BY_HAND}{}{}",
                entries(versions[0], "one", &[("one", 0), (".Lexit", 1)], word),
                // Behind the function's begin, as after `endbr64` or before a local entry point.
                entries(versions[1], "two", &[("two + 4", 3)], word)
            );
            assemble(&bench, triple, &text, "p.o");
            let mut files = vec!["p.o"];
            let links = [
                ("fixed", &["-e", "one"][..]),
                ("pie", &["-pie", "-e", "one", "-z", "notext"]),
                ("lib.so", &["-shared", "-z", "notext"]),
            ];
            // The linker has no relocation of four bytes for x32 that could be applied at load
            // time.
            let fixed_only = triple.ends_with("x32") && versions != [2, 2];
            for (out, arguments) in &links[..if fixed_only { 1 } else { 3 }] {
                bench.run(LLD, &[*arguments, &["p.o", "-o", *out]].concat());
                files.push(*out);
            }
            for file in files {
                let why = format!("{triple} {versions:?} {file}");
                let object = Object::parse_any(&bench.read(file)).unwrap();
                assert_eq!(object.machine(), machine, "{why}");
                assert_eq!(object.warnings(), [], "{why}");
                let expected = [
                    (
                        "one".to_owned(),
                        vec![
                            (0, SledKind::Entry, true, versions[0]),
                            (4, SledKind::Exit, true, versions[0]),
                        ],
                    ),
                    (
                        "two".to_owned(),
                        vec![(4, SledKind::EntryWithArgument, true, versions[1])],
                    ),
                ];
                assert_eq!(shape(&object), BTreeMap::from(expected), "{why}");
                assert!(
                    object.functions().iter().all(|function| function.size == 8),
                    "{why}"
                );
                // llvm-xray does not read the others, takes distances of 32 bits for positive, and
                // omits the relocations of a file still to be linked.
                let llvm_reads = match machine {
                    Machine::X86_64 => word == 8,
                    Machine::Aarch64 | Machine::Ppc64 | Machine::LoongArch => true,
                    Machine::Arm => versions == [0, 0],
                    _ => false,
                };
                if llvm_reads && file != "p.o" {
                    let yaml = bench.run(LLVM_XRAY, &["extract", file, "-s"]);
                    assert_eq!(written(&object), yaml, "{why}");
                }
            }
        }
    }
}

/// Two files with the same inline functions and templates. The linker drops the groups of one of
/// them; a file that stays relocatable keeps the maps of the other groups.
#[test]
fn groups_that_the_linker_drops_leave_one_map() {
    let bench = Workbench::new();
    bench.write("p.cc", PROGRAM);
    let other = PROGRAM
        .replace("extern \"C\" int start", "extern \"C\" int other")
        .replace(
            "extern \"C\" __attribute__((noinline)) int leaf(int x) {",
            "extern \"C\" int leaf(int x); int elsewhere(int x) {",
        );
    bench.write("q.cc", &other);
    for triple in [
        "x86_64-linux-gnu",
        "aarch64-linux-gnu",
        "mips-linux-gnu",
        "armv7-linux-gnueabihf",
        "loongarch64-linux-gnu",
    ] {
        for arguments in [&[][..], &["-ffunction-sections"]] {
            compile(&bench, triple, "p.cc", "p.o", arguments);
            compile(&bench, triple, "q.cc", "q.o", arguments);
            assemble(&bench, triple, STUBS, "stubs.o");
            let files = ["p.o", "q.o", "stubs.o", "-o"];
            bench.run(LLD, &[&["-e", "start"], &files[..], &["linked"]].concat());
            bench.run(LLD, &[&["-r"], &files[..], &["again.o"]].concat());
            let why = format!("{triple} {arguments:?}");
            let [linked, again] =
                ["linked", "again.o"].map(|file| Object::parse_any(&bench.read(file)).unwrap());
            assert_eq!(linked.warnings(), [], "{why}");
            assert_eq!(again.warnings(), [], "{why}");
            // Both have a `hidden(int)` of their own, and the second file has two more functions.
            assert_eq!(linked.functions().len(), FUNCTIONS.len() + 3, "{why}");
            assert_eq!(again.functions().len(), FUNCTIONS.len() + 3, "{why}");
            assert_eq!(shape(&again), shape(&linked), "{why}");
            if matches!(linked.machine(), Machine::X86_64 | Machine::Aarch64) {
                let yaml = bench.run(LLVM_XRAY, &["extract", "linked", "-s"]);
                assert_eq!(written(&linked), yaml, "{why}");
            }
        }
    }
}

/// The index of old compilers, before linking and in 32 bits.
#[test]
fn the_index_of_addresses_is_known_in_every_size() {
    let bench = Workbench::new();
    for (triple, word) in [
        ("x86_64-linux-gnu", 8),
        ("armv7-linux-gnueabihf", 4),
        ("mips64el-linux-gnuabi64", 8),
    ] {
        let directive = if word == 4 { ".long" } else { ".quad" };
        let map = entries(0, "one", &[("one", 0), (".Lexit", 1)], word);
        let (section, map) = map.split_once('\n').unwrap();
        for (end, expected) in [
            (".Acquire", FunctionIndex::Addresses),
            (".Lbegin", FunctionIndex::Disagrees),
        ] {
            let text = format!(
                "{BY_HAND}{section}\n.Lbegin:\n{map}.Acquire:\n        .section xray_fn_idx,\"awo\",%progbits,.text.one\n        {directive} .Lbegin, {end}\n"
            );
            assemble(&bench, triple, &text, "p.o");
            bench.run(
                LLD,
                &["-pie", "-e", "one", "-z", "notext", "p.o", "-o", "pie"],
            );
            for file in ["p.o", "pie"] {
                let object = Object::parse_any(&bench.read(file)).unwrap();
                assert_eq!(object.index(), expected, "{triple} {file}");
            }
        }
    }
}

/// More sections than an ELF header can count. Their number and the symbols' sections are elsewhere
/// then.
#[test]
fn a_file_of_very_many_sections_is_read() {
    const FUNCTIONS: usize = 23_000;
    let bench = Workbench::new();
    let text: String = (0..FUNCTIONS)
        .map(|n| {
            format!(".section .text.f{n},\"ax\",@progbits\n.type f{n},@function\nf{n}: ret\n.section xray_instr_map,\"ao\",@progbits,.text.f{n}\n.quad f{n}-., f{n}-.\n.byte 0,0,2\n.zero 13\n")
        })
        .collect();
    assemble(&bench, "x86_64-linux-gnu", &text, "p.o");
    let object = Object::parse_any(&bench.read("p.o")).unwrap();
    assert_eq!(object.functions().len(), FUNCTIONS);
    assert_eq!(object.warnings(), []);
    for (number, function) in object.functions().iter().enumerate() {
        assert_eq!(function.name, format!("f{number}"));
    }
    assert!(object.functions()[FUNCTIONS - 1].section > 0xffff);
}

#[test]
fn entries_that_nothing_relocates_are_reported() {
    let bench = Workbench::new();
    let map = "        .section xray_instr_map,\"a\",@progbits\n        .quad gone - .\n        .quad gone - .\n        .byte 0, 0, 2\n        .zero 13\n        .quad data - .\n        .quad data - .\n        .byte 0, 0, 2\n        .zero 13\n        .data\ndata:   .long 0\n";
    assemble(&bench, "x86_64-linux-gnu", map, "p.o");
    let object = Object::parse_any(&bench.read("p.o")).unwrap();
    assert_eq!(
        object.warnings(),
        [
            Warning::Unrelocated { count: 1 },
            Warning::OutsideCode {
                count: 1,
                first: FileAddr(0)
            }
        ]
    );
}

#[test]
fn only_what_can_be_traced_is_read_by_the_strict_reader() {
    let bench = Workbench::new();
    for (triple, expected) in [
        ("x86_64-linux-gnu", ObjectError::Relocatable),
        ("armv7-linux-gnueabihf", ObjectError::ThirtyTwoBit),
    ] {
        assemble(&bench, triple, ".long 0\n", "p.o");
        let bytes = bench.read("p.o");
        assert_eq!(Object::parse(&bytes).unwrap_err(), expected);
        assert_eq!(Object::parse_any(&bytes).unwrap_err(), ObjectError::NoMap);
        let error = InstrMap::read(&bytes).unwrap_err();
        assert_eq!(error, MapError::Object(ObjectError::NoMap));
    }
}
