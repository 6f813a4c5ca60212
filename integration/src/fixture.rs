//! The target programs. The commands that compile them are in `recipe.rs`.

/// One target program. Its source describes what it does and which lines it understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fixture {
    /// `demo/main.rs`: a believable service in Rust, compiled without any clang.
    Demo,
    /// `counted.cpp`: counts its own calls; see [`crate::GroundTruth`].
    Counted,
    /// `counted.cpp` with LLVM's own runtime, for `--mode xray-fdr` and `--mode xray-basic`.
    CountedLlvm,
    /// `torture/`: every register through every kind of sled.
    Torture,
    /// `siglots.cpp`: checksums under timer signals on small alternate stacks.
    Siglots,
    /// `tailcond.c` by clang-14: tail sleds before conditional jumps.
    TailCond,
    /// `blocking.c`: a thread in each of the blocking system calls.
    Blocking,
    /// `arg1.cpp`: entry sleds with argument.
    Arg1,
    /// `values.cpp`: functions whose arguments and results follow from each other.
    Values,
    /// `events/`: custom and typed events of every size and from every place.
    Events,
    /// `types.c`: typed events whose types have names, without LLVM's runtime.
    Types,
    /// The same with LLVM's runtime.
    TypesLlvm,
    /// `triggers.c`: calls, events and ends that a trigger may wait for.
    Triggers,
    /// `service.cpp`: a service that handles requests, some of them slowly.
    Service,
    /// Its next release, with another build id.
    ServiceNext,
    /// `budget.c`: requests, and a function that is called too often to be worth recording.
    Budget,
    /// `scheduled.c`: calls that work and calls that wait, of two threads on one processor.
    Scheduled,
    /// `noexit.cpp`: calls that end by exception, `longjmp` or not at all.
    NoExit,
    /// `unwinding.cpp`: calls that are left in every way there is. It counts calls by caller and
    /// callee.
    Unwinding,
    /// `switching.c`: a signal handler that switches to another fiber in the midst of a call.
    Switching,
    /// `manythreads.c`: idle threads, and one that watches the clock.
    ManyThreads,
    /// `quiet.c`: threads that make two calls a second.
    Quiet,
    /// `oldsleds/`: map entries of versions 0, 1 and 2 in a position-independent program, old
    /// function index.
    OldSledsPie,
    /// `oldsleds/`: the same at fixed addresses, without a function index.
    OldSledsFixed,
    /// `dso/`: a program and a shared library, both with sleds.
    Dso,
    /// `dso/`: the same program, with a library that clang 22 has compiled with `-fxray-shared`.
    DsoShared,
    /// `plugins/`: a host that loads and unloads plugins, and beside it a host without sleds,
    /// `bare_host`.
    Plugins,
    /// `saying/`: a host and libraries, all with custom and typed events.
    Saying,
    /// `hugetext.c`: a program that copies its own text elsewhere.
    HugeText,
    /// `arg1.cpp` linked statically, without a dynamic loader.
    Static,
    /// `instrumented.c`: no sleds, but calls of LTTng's functions.
    Instrumented,
    /// `plain.c`: no sleds at all.
    Plain,
    /// `m32.S`: a 32-bit program.
    M32,
    /// `seccomp_strict.c`: a program that must not make any system call of the tracer.
    SeccompStrict,
    /// `credentials.c`: a process with any credentials, and the processes that the kernel lets it
    /// trace.
    Credentials,
    /// `confined.c`: a program under a seccomp filter of its own.
    Confined,
    /// `leaf.cpp`: measures the cost of a call.
    Leaf,
    /// `leaf.cpp` with LLVM's own runtime, for `--log xray-fdr` and `--log xray-basic`.
    LeafLlvm,
    /// `forks.c`: fork, vfork and exec.
    Forks,
    /// `leaderless.c`: a process whose main thread has ended.
    Leaderless,
    /// `signals.c`: takes signals in every way there is, and counts them.
    Signals,
    /// `group.c`: a process and its descendants, which count their own calls.
    Group,
    /// `rseq.c`: restartable sequences.
    Rseq,
    /// `reborn.c`: threads that get the ids of threads that have just ended.
    Reborn,
    /// `hostile.c`: works against its tracer.
    Hostile,
    /// `descriptors.c`: exchanges descriptors and mappings under its tracer.
    Descriptors,
    /// `attacker.c`: attacks its tracer while the tracer reads it.
    Attacker,
    /// `mappings.c`: maps files that a tracer should not wait for.
    Mappings,
    /// `rewriter.c`: rewrites the instructions that its tracer borrows.
    Rewriter,
    /// `itself.cpp`: LLVM's own runtime patches it on request.
    Itself,
    /// `kinds.c` as a dynamic program at fixed addresses.
    KindFixed,
    /// `kinds.c` linked statically, position-independent.
    KindStaticPie,
    /// `kinds.c` with musl, dynamic.
    KindMusl,
    /// `kinds.c` with musl, linked statically.
    KindMuslStatic,
    /// `kinds.c` under the address sanitizer.
    KindAsan,
    /// `kinds.c` under the thread sanitizer.
    KindTsan,
    /// Generated: 20,000 functions with sleds. For each line, `main` calls each of them once.
    Many20k,
    /// Generated: the same with 400 functions.
    Many400,
    /// Generated: the same with 200,000 functions, in C++ with parameters, namespaces and debug
    /// information.
    Many200k,
}

// === impl Fixture ===

impl Fixture {
    /// Every fixture that is built within seconds. [`Fixture::Many200k`] takes minutes.
    pub const ALL: &[Fixture] = &[
        Fixture::Demo,
        Fixture::Counted,
        Fixture::CountedLlvm,
        Fixture::Torture,
        Fixture::Siglots,
        Fixture::TailCond,
        Fixture::Blocking,
        Fixture::Arg1,
        Fixture::Values,
        Fixture::Events,
        Fixture::Types,
        Fixture::TypesLlvm,
        Fixture::Triggers,
        Fixture::Service,
        Fixture::ServiceNext,
        Fixture::Budget,
        Fixture::Scheduled,
        Fixture::NoExit,
        Fixture::Unwinding,
        Fixture::Switching,
        Fixture::ManyThreads,
        Fixture::Quiet,
        Fixture::OldSledsPie,
        Fixture::OldSledsFixed,
        Fixture::Dso,
        Fixture::DsoShared,
        Fixture::Plugins,
        Fixture::Saying,
        Fixture::HugeText,
        Fixture::Static,
        Fixture::Instrumented,
        Fixture::Plain,
        Fixture::M32,
        Fixture::SeccompStrict,
        Fixture::Credentials,
        Fixture::Confined,
        Fixture::Leaf,
        Fixture::LeafLlvm,
        Fixture::Forks,
        Fixture::Leaderless,
        Fixture::Signals,
        Fixture::Group,
        Fixture::Rseq,
        Fixture::Reborn,
        Fixture::Hostile,
        Fixture::Descriptors,
        Fixture::Attacker,
        Fixture::Mappings,
        Fixture::Rewriter,
        Fixture::Itself,
        Fixture::KindFixed,
        Fixture::KindStaticPie,
        Fixture::KindMusl,
        Fixture::KindMuslStatic,
        Fixture::KindAsan,
        Fixture::KindTsan,
        Fixture::Many20k,
        Fixture::Many400,
    ];

    /// The program's file name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Fixture::Demo => "demo",
            Fixture::Counted => "counted",
            Fixture::CountedLlvm => "counted-llvm",
            Fixture::Torture => "torture",
            Fixture::Siglots => "siglots",
            Fixture::TailCond => "tailcond",
            Fixture::Blocking => "blocking",
            Fixture::Arg1 => "arg1",
            Fixture::Values => "values",
            Fixture::Events => "events",
            Fixture::Types => "types",
            Fixture::TypesLlvm => "types-llvm",
            Fixture::Triggers => "triggers",
            Fixture::Service => "service",
            Fixture::ServiceNext => "service_next",
            Fixture::Budget => "budget",
            Fixture::Scheduled => "scheduled",
            Fixture::NoExit => "noexit",
            Fixture::Unwinding => "unwinding",
            Fixture::Switching => "switching",
            Fixture::ManyThreads => "manythreads",
            Fixture::Quiet => "quiet",
            Fixture::OldSledsPie => "oldsleds-pie",
            Fixture::OldSledsFixed => "oldsleds-fixed",
            Fixture::Dso => "dso",
            Fixture::DsoShared => "dso-shared",
            Fixture::Plugins => "plugins",
            Fixture::Saying => "saying",
            Fixture::HugeText => "hugetext",
            Fixture::Static => "static",
            Fixture::Instrumented => "instrumented",
            Fixture::Plain => "plain",
            Fixture::M32 => "m32",
            Fixture::SeccompStrict => "seccomp-strict",
            Fixture::Credentials => "credentials",
            Fixture::Confined => "confined",
            Fixture::Leaf => "leaf",
            Fixture::LeafLlvm => "leaf-llvm",
            Fixture::Forks => "forks",
            Fixture::Leaderless => "leaderless",
            Fixture::Signals => "signals",
            Fixture::Group => "group",
            Fixture::Rseq => "rseq",
            Fixture::Reborn => "reborn",
            Fixture::Hostile => "hostile",
            Fixture::Descriptors => "descriptors",
            Fixture::Attacker => "attacker",
            Fixture::Mappings => "mappings",
            Fixture::Rewriter => "rewriter",
            Fixture::Itself => "itself",
            Fixture::KindFixed => "kind-fixed",
            Fixture::KindStaticPie => "kind-static-pie",
            Fixture::KindMusl => "kind-musl",
            Fixture::KindMuslStatic => "kind-musl-static",
            Fixture::KindAsan => "kind-asan",
            Fixture::KindTsan => "kind-tsan",
            Fixture::Many20k => "many20k",
            Fixture::Many400 => "many400",
            Fixture::Many200k => "many200k",
        }
    }
}
