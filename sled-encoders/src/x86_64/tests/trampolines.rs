//! The trampolines, instruction by instruction: the instructions that they may contain, and the
//! registers that each path puts back.

use std::collections::{BTreeMap, BTreeSet};

use yaxpeax_x86::amd64::{Opcode, Operand, RegSpec};

use super::*;

fn spec(ring_bytes: u64, threads: u32) -> TrampolineSpec {
    TrampolineSpec {
        origin: 0x5555_0000_0000,
        tid_offset: 0x2d0,
        table: 0x5555_0001_0000,
        rings: 0x7f00_0000_0000,
        geometry: Geometry::new(ring_bytes, threads).unwrap(),
    }
}

/// The smallest geometry, the default, the largest ring, the most threads.
fn specs() -> [TrampolineSpec; 4] {
    [
        spec(1 << 16, 1),
        spec(1 << 20, 1024),
        spec(1 << 30, 1024),
        spec(1 << 20, 1 << 16),
    ]
}

/// The dispatch modes of enabled trampolines. Disabled ones have no more instructions, and a return
/// before code that no thread comes to.
const OPEN: [DispatchMode; 5] = [
    DispatchMode::None,
    DispatchMode::Count,
    DispatchMode::Filter,
    DispatchMode::Profile,
    DispatchMode::ProfileAndRecord,
];

/// All states of the gates. While trampolines are disabled, the dispatch mode makes no difference
/// for a thread that comes, but a thread may be in one already.
const WAYS: [(DispatchMode, Enable); 10] = [
    (DispatchMode::None, Enable::On),
    (DispatchMode::Count, Enable::On),
    (DispatchMode::Filter, Enable::On),
    (DispatchMode::Profile, Enable::On),
    (DispatchMode::ProfileAndRecord, Enable::On),
    (DispatchMode::None, Enable::Off),
    (DispatchMode::Count, Enable::Off),
    (DispatchMode::Filter, Enable::Off),
    (DispatchMode::Profile, Enable::Off),
    (DispatchMode::ProfileAndRecord, Enable::Off),
];

/// The code in this dispatch mode, enabled or disabled.
fn behind(
    trampolines: &Trampolines,
    spec: &TrampolineSpec,
    (dispatch_mode, enable): (DispatchMode, Enable),
) -> Vec<u8> {
    let mut code = trampolines.code.clone();
    for gate in &trampolines.gates {
        let byte = &mut code[usize::try_from(gate.address - spec.origin).unwrap()];
        let off = gate.byte(DispatchMode::None, Enable::On);
        assert_eq!(*byte, off, "{:#x}", gate.address);
        *byte = gate.byte(dispatch_mode, enable);
    }
    code
}

/// All instructions by their place; the code has no other bytes.
fn program(code: &[u8]) -> BTreeMap<u64, Instruction> {
    let instructions = decode(code);
    let length: u64 = instructions.iter().map(|(_, i)| i.len().to_const()).sum();
    assert_eq!(length, code.len() as u64, "every byte decodes");
    instructions.into_iter().collect()
}

fn starts(trampolines: &Trampolines, spec: &TrampolineSpec) -> BTreeSet<u64> {
    let targets = SledKind::ALL.into_iter().flat_map(|kind| {
        captures().map(move |capture| {
            let target = trampolines.target_for(kind, capture);
            assert!(trampolines.is_target(kind, target), "{kind:?} {capture:?}");
            target
        })
    });
    targets
        .chain([trampolines.stub_target()])
        .map(|address| address - spec.origin)
        .collect()
}

/// All that can be recorded.
fn captures() -> impl Iterator<Item = Capture> {
    (0..=6).flat_map(|count| {
        let arguments = Capture::NONE.with_arguments(count).unwrap();
        [arguments, arguments.with_result()]
    })
}

#[test]
fn each_sled_calls_the_flavour_that_it_is_staged_for() {
    let [spec, ..] = specs();
    let trampolines = Trampolines::assemble(&spec).unwrap();
    // Entries with 0 to 6 values, with the first argument, exits without and with a value, tail
    // exits, for stubs, for events.
    assert_eq!(starts(&trampolines, &spec).len(), 13);
    let all = Capture::NONE.with_arguments(6).unwrap().with_result();
    for kind in SledKind::ALL {
        let plain = trampolines.target_for(kind, Capture::NONE);
        assert_eq!(plain, trampolines.target(kind));
        let has_values = matches!(
            kind,
            SledKind::Entry | SledKind::EntryArgument | SledKind::Exit
        );
        let target = trampolines.target_for(kind, all);
        assert_eq!(target != plain, has_values, "{kind:?}");
        let elsewhere = SledKind::ALL
            .into_iter()
            .filter(|other| *other != kind && has_values && trampolines.is_target(*other, target));
        let expected = usize::from(matches!(kind, SledKind::Entry | SledKind::EntryArgument));
        assert_eq!(elsewhere.count(), expected, "{kind:?}");
    }
}

#[test]
fn they_fit_their_pages_and_begin_cache_lines() {
    for spec in specs() {
        let trampolines = Trampolines::assemble(&spec).unwrap();
        let length = trampolines.code.len();
        assert!(length <= 4 * 4096 - 256, "{length}");
        assert!(
            starts(&trampolines, &spec)
                .iter()
                .all(|start| start % 64 == 0)
        );
    }
}

#[test]
fn they_contain_nothing_but_harmless_instructions() {
    use Opcode::*;
    // No vector or x87 instruction, no system call, and no instruction that waits, serialises or
    // may fault by itself. The loop that waits for room in a full ring has a `pause`, which the
    // disassembler shows as `nop`.
    const PAUSE: [u8; 2] = [0xf3, 0x90];
    let allowed = [
        ADD, AND, BSR, BTR, BTS, CALL, CMOVS, CMP, CMPXCHG, DEC, IMUL, INC, INT, JA, JB, JMP, JNA,
        JNB, JNZ, JS, JZ, LAHF, LEA, MOV, MOVZX, NEG, OR, POP, PUSH, RDTSC, RETURN, SAHF, SETO,
        SHL, SHR, SUB, TEST, XADD, XCHG, XOR,
    ];
    for spec in specs() {
        let trampolines = Trampolines::assemble(&spec).unwrap();
        let programs = OPEN.map(|dispatch_mode| {
            program(&behind(&trampolines, &spec, (dispatch_mode, Enable::On)))
        });
        let mut pauses = BTreeSet::new();
        for (at, instruction) in programs.into_iter().flatten() {
            let begin = usize::try_from(at).unwrap();
            if trampolines.code[begin..].starts_with(&PAUSE) {
                pauses.insert(at);
                continue;
            }
            assert!(
                allowed.contains(&instruction.opcode()),
                "{at:#x}: {instruction}"
            );
            if instruction.opcode() == INT {
                assert_eq!(instruction.to_string(), "int 0x3", "padding");
            }
            for i in 0..instruction.operand_count() {
                let harmless = match instruction.operand(i) {
                    Operand::Register { reg } => {
                        let class = reg.class();
                        [
                            RegSpec::al(),
                            RegSpec::ax(),
                            RegSpec::r9b(),
                            RegSpec::eax(),
                            RegSpec::rax(),
                        ]
                        .iter()
                        .any(|general| general.class() == class)
                    }
                    _ => true,
                };
                assert!(harmless, "{at:#x}: {instruction}");
            }
        }
        assert_eq!(pauses.len(), 1, "{pauses:x?}");
    }
}

/// A value, as far as it matters: the register that held it at the beginning, if it is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Initial(u8),
    Computed,
    /// A return address pushed by a call at this place.
    Return(u64),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Path {
    at: u64,
    registers: [Value; 16],
    stack: Vec<Value>,
}

/// Number of a general register, whatever the width.
fn general(operand: &Operand) -> Option<usize> {
    match operand {
        Operand::Register { reg } => Some(usize::from(reg.num())),
        _ => None,
    }
}

fn target(at: u64, instruction: &Instruction) -> u64 {
    let next = at + instruction.len().to_const();
    match instruction.operand(0) {
        Operand::ImmediateI8 { imm } => next.wrapping_add_signed(i64::from(imm)),
        Operand::ImmediateI32 { imm } => next.wrapping_add_signed(i64::from(imm)),
        other => panic!("{at:#x}: {instruction} jumps through {other:?}"),
    }
}

/// One instruction further, on every way it can go; `None` at the end.
fn follow(path: &Path, instruction: &Instruction) -> Option<Vec<Path>> {
    const RSP: usize = 4;
    let mut next = Path {
        at: path.at + instruction.len().to_const(),
        ..path.clone()
    };
    let operand = |i| instruction.operand(i);
    match instruction.opcode() {
        Opcode::PUSH => {
            let pushed = general(&operand(0)).map(|register| path.registers[register]);
            next.stack.push(pushed.unwrap_or(Value::Computed));
        }
        Opcode::POP => {
            let register = general(&operand(0)).expect("pops are to registers");
            next.registers[register] = next.stack.pop().expect("something was pushed");
        }
        Opcode::CALL => {
            next.stack.push(Value::Return(next.at));
            next.at = target(path.at, instruction);
        }
        Opcode::RETURN => match next.stack.pop() {
            Some(Value::Return(at)) => next.at = at,
            None => return None,
            Some(other) => panic!("{:#x}: returns to {other:?}", path.at),
        },
        Opcode::JMP => next.at = target(path.at, instruction),
        opcode if instruction.to_string().starts_with('j') => {
            let taken = Path {
                at: target(path.at, instruction),
                ..next.clone()
            };
            assert_ne!(opcode, Opcode::JRCXZ);
            return Some(vec![next, taken]);
        }
        Opcode::CMP | Opcode::TEST | Opcode::SAHF => {}
        Opcode::LEA if general(&operand(0)) == Some(RSP) => {
            let Operand::Disp { base, disp } = operand(1) else {
                panic!("{:#x}: {instruction}", path.at)
            };
            assert_eq!((usize::from(base.num()), disp % 8), (RSP, 0));
            let left = path
                .stack
                .len()
                .checked_sub(usize::try_from(disp / 8).unwrap());
            next.stack.truncate(left.expect("something was pushed"));
        }
        opcode => {
            let mut written = vec![general(&operand(0))];
            match opcode {
                Opcode::RDTSC => written.extend([Some(0), Some(2)]),
                Opcode::CMPXCHG | Opcode::LAHF => written.push(Some(0)),
                Opcode::XADD | Opcode::XCHG => written.push(general(&operand(1))),
                _ => {}
            }
            for register in written.into_iter().flatten() {
                assert_ne!(register, RSP, "{:#x}: {instruction}", path.at);
                next.registers[register] = Value::Computed;
            }
        }
    }
    Some(vec![next])
}

#[test]
fn every_path_puts_every_register_back() {
    for (spec, way) in specs()
        .into_iter()
        .flat_map(|spec| WAYS.map(|way| (spec, way)))
    {
        let trampolines = Trampolines::assemble(&spec).unwrap();
        let program = program(&behind(&trampolines, &spec, way));
        let event = trampolines.target(SledKind::CustomEvent) - spec.origin;
        let values = [SledKind::Entry, SledKind::Exit].map(|kind| {
            let with = captures().map(|capture| trampolines.target_for(kind, capture));
            let with = with.filter(|target| *target != trampolines.target(kind));
            with.map(|target| target - spec.origin).collect::<Vec<_>>()
        });
        let values = values.concat();
        for start in starts(&trampolines, &spec) {
            let registers = std::array::from_fn(|i| Value::Initial(u8::try_from(i).unwrap()));
            let mut open = vec![Path {
                at: start,
                registers,
                stack: Vec::new(),
            }];
            let mut seen = BTreeSet::new();
            let (mut ends, mut deepest) = (0, 0);
            while let Some(path) = open.pop() {
                let instruction = program
                    .get(&path.at)
                    .unwrap_or_else(|| panic!("{:#x} is no instruction", path.at));
                assert_ne!(
                    instruction.opcode(),
                    Opcode::INT,
                    "{:#x}: into padding",
                    path.at
                );
                deepest = deepest.max(path.stack.len());
                match follow(&path, instruction) {
                    Some(paths) => {
                        for next in paths {
                            if seen.insert(next.clone()) {
                                open.push(next);
                            }
                        }
                    }
                    None => {
                        assert_eq!(path.registers, registers, "from {start:#x}");
                        ends += 1;
                    }
                }
            }
            assert!(ends >= 1, "{start:#x} ends");
            // The bounds in the header of `trampoline`. The return address into the sled is below.
            let most = match (start, way.0) {
                _ if way.1 == Enable::Off => 8,
                (_, DispatchMode::Count) => 144,
                (_, DispatchMode::Profile) => 152,
                (_, DispatchMode::None | DispatchMode::ProfileAndRecord) if start == event => 192,
                (_, DispatchMode::None) if values.contains(&start) => 280,
                (_, DispatchMode::None | DispatchMode::ProfileAndRecord) => 160,
                (_, DispatchMode::Filter) if start == event => 280,
                (_, DispatchMode::Filter) if values.contains(&start) => 368,
                (_, DispatchMode::Filter) => 248,
            };
            assert!(
                8 * (deepest + 1) <= most,
                "{start:#x} takes {} bytes",
                8 * (deepest + 1)
            );
        }
    }
}
