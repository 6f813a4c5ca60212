//! The commands that compile the target programs. `build.rs` runs them.

use std::fmt::Write as _;

use crate::fixture::Fixture;
use crate::tool::Tool;

/// The recipe of a fixture: files, and commands that run one after the other in a directory of its
/// own.
pub(crate) struct Recipe {
    /// Files below `fixtures/` that go into the cache key. The commands name them by `{src}/…`.
    pub(crate) sources: &'static [&'static str],
    /// A file that the harness makes itself: its name and its content.
    pub(crate) generated: Option<(&'static str, String)>,
    /// `{src}` stands for the fixtures' directory. All other paths are relative to the output
    /// directory.
    pub(crate) steps: Vec<(Tool, Vec<&'static str>)>,
}

/// Warnings are errors: a fixture that the compiler doubts proves nothing. Symbols are bound at
/// start, so that no lazy binding runs on a small signal stack.
const COMMON: &[&str] = &[
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pthread",
    "-Wl,-z,now",
];
const SLEDS: &[&str] = &[
    "-fxray-instrument",
    "-fxray-instruction-threshold=1",
    "-fno-xray-link-deps",
];
/// Options for sleds only in functions that ask for them by attribute: the ground truth must know
/// each by name.
const CHOSEN: &[&str] = &[
    "-fxray-instrument",
    "-fxray-instruction-threshold=1000000",
    "-fxray-ignore-loops",
];
const NO_RUNTIME: &[&str] = &["-fno-xray-link-deps"];
const OPTIMISED: &[&str] = &["-O2"];
const TYPES: &[&str] = &[
    "common.h",
    "types.c",
    "../without-runtime/xray_events.c",
    "../without-runtime/xray_events.h",
];
/// The functions that event sleds call as compiled.
const EVENTS: &str = "{src}/../without-runtime/xray_events.c";
const CXX: &[&str] = &["-std=c++20"];
const KIND: &[&str] = &["common.h", "kinds.c"];
const KIND_FILE: &[&str] = &["{src}/kinds.c"];
/// The options that `musl-gcc` gives to gcc, for clang.
const MUSL: &[&str] = &[
    "-nostdlib",
    "-nostdinc",
    "-isystem",
    "/usr/include/x86_64-linux-musl",
    "-isystem",
    "/usr/lib/llvm-19/lib/clang/19/include",
    "-L/usr/lib/x86_64-linux-musl",
];
const MUSL_FILES: &[&str] = &[
    "/usr/lib/x86_64-linux-musl/crt1.o",
    "/usr/lib/x86_64-linux-musl/crti.o",
    "{src}/kinds.c",
];
const MUSL_LAST: &str = "/usr/lib/x86_64-linux-musl/crtn.o";
const DEMO: &[&str] = &[
    "--edition=2024",
    "--crate-name=demo",
    "-Copt-level=2",
    "-Cdebuginfo=2",
    "-Dwarnings",
    "-Zinstrument-xray=always",
    "{src}/demo/main.rs",
];
/// The options of clang-14, which spells the last one differently.
const TAILCOND: &[&str] = &[
    "-Os",
    "-fxray-instrument",
    "-fxray-instruction-threshold=1",
    "-fnoxray-link-deps",
];
const OLD_SLEDS: &[&str] = &["common.h", "oldsleds/main.c", "oldsleds/sleds.S"];
const OLD_SLEDS_FILES: &[&str] = &["{src}/oldsleds/main.c", "{src}/oldsleds/sleds.S"];

// === impl Fixture ===

impl Fixture {
    pub(crate) fn recipe(self) -> Recipe {
        let out = ["-o", self.name()];
        let c = |groups: &[&[&'static str]]| {
            vec![(Tool::Clang19, [groups.concat(), out.to_vec()].concat())]
        };
        let cxx = |groups: &[&[&'static str]]| {
            vec![(
                Tool::ClangXx19,
                [CXX.to_vec(), groups.concat(), out.to_vec()].concat(),
            )]
        };
        let recipe = |sources, steps| Recipe {
            sources,
            generated: None,
            steps,
        };
        let normal = |file| [OPTIMISED, COMMON, SLEDS, file].concat();
        let many = |file, count| Recipe {
            sources: &["common.h"],
            generated: Some((file, many_functions(count, &C_FUNCTION))),
            steps: c(&[&["-O1", "-I{src}"], COMMON, SLEDS, &[file]]),
        };
        match self {
            Fixture::Demo => recipe(
                &["demo/main.rs"],
                vec![(Tool::Rustc, [DEMO, &out[..]].concat())],
            ),
            Fixture::Counted => recipe(
                &["common.h", "counted.cpp"],
                cxx(&[
                    OPTIMISED,
                    COMMON,
                    CHOSEN,
                    NO_RUNTIME,
                    &["{src}/counted.cpp"],
                ]),
            ),
            Fixture::CountedLlvm => recipe(
                &["common.h", "counted.cpp"],
                cxx(&[
                    OPTIMISED,
                    COMMON,
                    CHOSEN,
                    &["-DLLVM_RUNTIME", "{src}/counted.cpp"],
                ]),
            ),
            Fixture::Torture => recipe(
                &[
                    "common.h",
                    "torture/state.h",
                    "torture/driver.cpp",
                    "torture/sleds.S",
                ],
                cxx(&[&normal(&[
                    "{src}/torture/driver.cpp",
                    "{src}/torture/sleds.S",
                ])]),
            ),
            Fixture::Siglots => recipe(
                &["common.h", "siglots.cpp"],
                cxx(&[&normal(&["{src}/siglots.cpp"])]),
            ),
            Fixture::TailCond => recipe(
                &["common.h", "tailcond.c"],
                vec![(
                    Tool::Clang14,
                    [TAILCOND, COMMON, &["{src}/tailcond.c"], &out[..]].concat(),
                )],
            ),
            Fixture::Blocking => recipe(
                &["common.h", "blocking.c"],
                c(&[&normal(&["{src}/blocking.c"])]),
            ),
            Fixture::Arg1 => recipe(
                &["common.h", "arg1.cpp"],
                cxx(&[&normal(&["{src}/arg1.cpp"])]),
            ),
            Fixture::Values => recipe(
                &["common.h", "values.cpp"],
                cxx(&[&normal(&["{src}/values.cpp"])]),
            ),
            Fixture::Events => recipe(
                &[
                    "common.h",
                    "events/main.c",
                    "events/sleds.S",
                    "../without-runtime/xray_events.c",
                    "../without-runtime/xray_events.h",
                ],
                c(&[&normal(&[
                    "{src}/events/main.c",
                    "{src}/events/sleds.S",
                    EVENTS,
                ])]),
            ),
            Fixture::Types => recipe(TYPES, c(&[&normal(&["{src}/types.c", EVENTS])])),
            Fixture::TypesLlvm => recipe(
                TYPES,
                c(&[
                    OPTIMISED,
                    COMMON,
                    CHOSEN,
                    &["-DLLVM_RUNTIME", "{src}/types.c"],
                ]),
            ),
            Fixture::Service | Fixture::ServiceNext => recipe(
                &["common.h", "service.cpp"],
                cxx(&[
                    OPTIMISED,
                    COMMON,
                    CHOSEN,
                    NO_RUNTIME,
                    match self {
                        Fixture::Service => &["-Wl,--build-id", "-DRELEASE=1"],
                        _ => &["-Wl,--build-id", "-DRELEASE=2"],
                    },
                    &["{src}/service.cpp"],
                ]),
            ),
            Fixture::Triggers => recipe(
                &[
                    "common.h",
                    "triggers.c",
                    "../without-runtime/xray_events.c",
                    "../without-runtime/xray_events.h",
                ],
                c(&[
                    OPTIMISED,
                    COMMON,
                    CHOSEN,
                    NO_RUNTIME,
                    &["{src}/triggers.c", EVENTS],
                ]),
            ),
            Fixture::Budget => recipe(
                &["common.h", "budget.c"],
                c(&[&normal(&["{src}/budget.c"])]),
            ),
            Fixture::Scheduled => recipe(
                &["common.h", "scheduled.c"],
                c(&[&normal(&["{src}/scheduled.c"])]),
            ),
            Fixture::NoExit => recipe(
                &["common.h", "noexit.cpp"],
                cxx(&[&normal(&["{src}/noexit.cpp"])]),
            ),
            Fixture::Unwinding => recipe(
                &["common.h", "unwinding.cpp"],
                cxx(&[&normal(&["{src}/unwinding.cpp"])]),
            ),
            Fixture::Switching => recipe(
                &["common.h", "switching.c"],
                c(&[&normal(&["{src}/switching.c"])]),
            ),
            Fixture::ManyThreads => recipe(
                &["common.h", "manythreads.c"],
                c(&[&normal(&["{src}/manythreads.c"])]),
            ),
            Fixture::Quiet => recipe(&["common.h", "quiet.c"], c(&[&normal(&["{src}/quiet.c"])])),
            Fixture::OldSledsPie => recipe(
                OLD_SLEDS,
                c(&[&["-pie", "-fPIE", "-DOLD_INDEX"], &normal(OLD_SLEDS_FILES)]),
            ),
            Fixture::OldSledsFixed => recipe(
                OLD_SLEDS,
                c(&[&["-no-pie", "-fno-pie"], &normal(OLD_SLEDS_FILES)]),
            ),
            Fixture::Dso => dso(
                &["common.h", "dso/main.c", "dso/library.c"],
                &["{src}/dso/library.c"],
                self.name(),
            ),
            Fixture::DsoShared => dso(
                &[
                    "common.h",
                    "dso/main.c",
                    "dso/shared.s",
                    "../without-runtime/xray_events.c",
                    "../without-runtime/xray_events.h",
                ],
                &["{src}/dso/shared.s", EVENTS],
                self.name(),
            ),
            Fixture::Plugins => Recipe {
                sources: &["common.h", "plugins/host.c", "plugins/plugin.c"],
                generated: None,
                steps: [
                    plugin("plugin_a.so", &["-DNAME=a"]),
                    plugin("plugin_b.so", &["-DNAME=b"]),
                    plugin("plugin_c.so", &["-DNAME=c", "-Wl,--build-id=none"]),
                    plugin("many_a.so", &["-DNAME=a", "-DMANY"]),
                    plugin("large_a.so", &["-DNAME=a", "-DROOM=16777216"]),
                    plugin("large_b.so", &["-DNAME=b", "-DROOM=16777216"]),
                    bare_host(),
                    c(&[&normal(&["{src}/plugins/host.c"])]),
                ]
                .concat(),
            },
            Fixture::Saying => Recipe {
                sources: &[
                    "common.h",
                    "saying/host.c",
                    "saying/library.c",
                    "../without-runtime/xray_events.c",
                    "../without-runtime/xray_events.h",
                ],
                generated: None,
                steps: [
                    saying_library("libsaid.so", &["-DNAME=linked", "-DLETTER='l'"]),
                    saying_library("said_a.so", &["-DNAME=a", "-DLETTER='a'"]),
                    saying_library("said_b.so", &["-DNAME=b", "-DLETTER='b'"]),
                    c(&[&normal(&[
                        "{src}/saying/host.c",
                        EVENTS,
                        "-L.",
                        "-lsaid",
                        "-Wl,-rpath,$ORIGIN",
                    ])]),
                ]
                .concat(),
            },
            Fixture::Static => recipe(
                &["common.h", "arg1.cpp"],
                cxx(&[&["-static"], &normal(&["{src}/arg1.cpp"])]),
            ),
            Fixture::HugeText => recipe(
                &["common.h", "hugetext.c"],
                c(&[&normal(&["{src}/hugetext.c"])]),
            ),
            Fixture::Instrumented => recipe(
                &["common.h", "instrumented.c"],
                c(&[
                    OPTIMISED,
                    COMMON,
                    &["-finstrument-functions", "{src}/instrumented.c"],
                ]),
            ),
            Fixture::Plain => recipe(
                &["common.h", "plain.c"],
                c(&[OPTIMISED, COMMON, &["{src}/plain.c"]]),
            ),
            Fixture::M32 => recipe(
                &["m32.S"],
                c(&[&["-m32", "-nostdlib", "-static", "{src}/m32.S"]]),
            ),
            Fixture::SeccompStrict => recipe(
                &["common.h", "seccomp_strict.c"],
                c(&[&normal(&["{src}/seccomp_strict.c"])]),
            ),
            Fixture::Credentials => recipe(
                &["common.h", "credentials.c"],
                c(&[&normal(&["{src}/credentials.c"])]),
            ),
            Fixture::Confined => recipe(
                &["common.h", "confined.c"],
                c(&[&normal(&["{src}/confined.c"])]),
            ),
            Fixture::Leaf => recipe(
                &["common.h", "leaf.cpp"],
                cxx(&[OPTIMISED, COMMON, CHOSEN, NO_RUNTIME, &["{src}/leaf.cpp"]]),
            ),
            Fixture::LeafLlvm => recipe(
                &["common.h", "leaf.cpp"],
                cxx(&[
                    OPTIMISED,
                    COMMON,
                    CHOSEN,
                    &[
                        "-fxray-modes=xray-basic,xray-fdr,xray-profiling",
                        "-DLLVM_RUNTIME",
                        "{src}/leaf.cpp",
                    ],
                ]),
            ),
            Fixture::Forks => recipe(&["common.h", "forks.c"], c(&[&normal(&["{src}/forks.c"])])),
            Fixture::Leaderless => recipe(
                &["common.h", "leaderless.c"],
                c(&[&normal(&["{src}/leaderless.c"])]),
            ),
            Fixture::Signals => recipe(
                &["common.h", "signals.c"],
                c(&[&normal(&["{src}/signals.c"])]),
            ),
            Fixture::Group => recipe(&["common.h", "group.c"], c(&[&normal(&["{src}/group.c"])])),
            Fixture::Rseq => recipe(&["common.h", "rseq.c"], c(&[&normal(&["{src}/rseq.c"])])),
            Fixture::Hostile => recipe(
                &["common.h", "hostile.c"],
                c(&[&normal(&["{src}/hostile.c"])]),
            ),
            Fixture::Reborn => recipe(
                &["common.h", "reborn.c"],
                c(&[&normal(&["{src}/reborn.c"])]),
            ),
            Fixture::Descriptors => recipe(
                &["common.h", "descriptors.c"],
                c(&[&normal(&["{src}/descriptors.c"])]),
            ),
            Fixture::Attacker => recipe(
                &["common.h", "attacker.c"],
                c(&[&normal(&["{src}/attacker.c"])]),
            ),
            Fixture::Mappings => recipe(
                &["common.h", "mappings.c"],
                c(&[&normal(&["{src}/mappings.c"])]),
            ),
            Fixture::Rewriter => recipe(
                &["common.h", "rewriter.c"],
                c(&[&normal(&["{src}/rewriter.c"])]),
            ),
            Fixture::Itself => recipe(
                &["common.h", "itself.cpp"],
                cxx(&[OPTIMISED, COMMON, CHOSEN, &["{src}/itself.cpp"]]),
            ),
            Fixture::KindFixed => recipe(KIND, c(&[&["-no-pie"], &normal(KIND_FILE)])),
            Fixture::KindStaticPie => recipe(KIND, c(&[&["-static-pie"], &normal(KIND_FILE)])),
            Fixture::KindMusl => recipe(
                KIND,
                c(&[
                    MUSL,
                    &["-no-pie", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"],
                    &normal(MUSL_FILES),
                    &["-l:libc.so", MUSL_LAST],
                ]),
            ),
            Fixture::KindMuslStatic => recipe(
                KIND,
                c(&[
                    MUSL,
                    &["-static"],
                    &normal(MUSL_FILES),
                    &["-l:libc.a", MUSL_LAST],
                ]),
            ),
            Fixture::KindAsan => recipe(KIND, c(&[&["-fsanitize=address"], &normal(KIND_FILE)])),
            Fixture::KindTsan => recipe(KIND, c(&[&["-fsanitize=thread"], &normal(KIND_FILE)])),
            Fixture::Many20k => many("many20k.c", 20_000),
            Fixture::Many400 => many("many400.c", 400),
            Fixture::Many200k => Recipe {
                sources: &["common.h"],
                generated: Some(("many200k.cpp", many_functions(200_000, &CXX_FUNCTION))),
                steps: cxx(&[&["-O1", "-I{src}"], COMMON, SLEDS, &["many200k.cpp"]]),
            },
        }
    }
}

/// The program of `dso/` with a library of these files.
fn dso(sources: &'static [&'static str], files: &[&'static str], name: &'static str) -> Recipe {
    let normal = |own: &[&'static str]| {
        let arguments = [OPTIMISED, COMMON, SLEDS, own].concat();
        (Tool::Clang19, arguments)
    };
    let library = [&["-fPIC", "-shared", "-o", "libtraced.so"], files].concat();
    let program = [
        "{src}/dso/main.c",
        "-L.",
        "-ltraced",
        "-Wl,-rpath,$ORIGIN",
        "-o",
        name,
    ];
    Recipe {
        sources,
        generated: None,
        steps: vec![normal(&library), normal(&program)],
    }
}

/// One of the plugins of [`Fixture::Plugins`], with the name `file`.
fn plugin(file: &'static str, options: &[&'static str]) -> Vec<(Tool, Vec<&'static str>)> {
    let own = [
        "-fPIC",
        "-shared",
        "-nostdlib",
        "{src}/plugins/plugin.c",
        "-o",
        file,
    ];
    let arguments = [OPTIMISED, COMMON, SLEDS, options, &own].concat();
    vec![(Tool::Clang19, arguments)]
}

/// One of the libraries of [`Fixture::Saying`], with the name `file`.
fn saying_library(file: &'static str, options: &[&'static str]) -> Vec<(Tool, Vec<&'static str>)> {
    let own = [
        "-fPIC",
        "-fvisibility=hidden",
        "-shared",
        "{src}/saying/library.c",
        EVENTS,
        "-o",
        file,
    ];
    let arguments = [OPTIMISED, COMMON, SLEDS, options, &own].concat();
    vec![(Tool::Clang19, arguments)]
}

/// The host of [`Fixture::Plugins`] without a sled, `bare_host`.
fn bare_host() -> Vec<(Tool, Vec<&'static str>)> {
    let own = ["{src}/plugins/host.c", "-o", "bare_host"];
    vec![(Tool::Clang19, [OPTIMISED, COMMON, &own].concat())]
}

/// The parts of a generated function.
struct Generated {
    /// Text before all functions.
    before: &'static str,
    /// The function's name without its number.
    name: &'static str,
    parameters: &'static str,
    /// Text after all functions.
    after: &'static str,
    /// The arguments of its call.
    arguments: &'static str,
}

const C_FUNCTION: Generated = Generated {
    before: "",
    name: "f",
    parameters: "unsigned long x",
    after: "",
    arguments: "1",
};

/// Its names have a usual length: 60 bytes as symbols, 90 demangled.
const CXX_FUNCTION: Generated = Generated {
    before: "namespace shop {\nnamespace detail {\nstruct Order;\n",
    name: "number_of_the_order_",
    parameters: "unsigned long x, Order *, const char *",
    after: "}\n}\nusing namespace shop::detail;\n",
    arguments: "1, nullptr, nullptr",
};

/// A program of `count` functions. For each line "go" it calls every one and answers with the sum.
fn many_functions(count: u32, function: &Generated) -> String {
    let Generated {
        before,
        name,
        parameters,
        after,
        arguments,
    } = function;
    let mut text = String::from("#include \"common.h\"\n");
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        text.write_fmt(arguments)
            .expect("writing to a string does not fail");
    };
    line(format_args!("{before}"));
    for i in 0..count {
        line(format_args!(
            "NOINLINE unsigned long {name}{i}({parameters}) {{ return x * 3 + {i}; }}\n"
        ));
    }
    line(format_args!(
        "{after}static unsigned long (*const all[])({parameters}) = {{\n"
    ));
    for i in 0..count {
        line(format_args!("{name}{i},\n"));
    }
    line(format_args!(
        "}};\nNEVER int main(void) {{\n fixture_begin();\n fixture_ready();\n char line[64];\n \
         while (fixture_line(line, sizeof line) && strcmp(line, \"go\") == 0) {{\n  unsigned long sum = 0;\n  \
         for (int i = 0; i < {count}; i++) sum += all[i]({arguments});\n  printf(\"done %lu\\n\", sum);\n }}\n return 0;\n}}\n"
    ));
    text
}
