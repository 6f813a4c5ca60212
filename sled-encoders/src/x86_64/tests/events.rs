//! The sleds of events: as compilers write them, nearly so, and the stubs. Running them is in
//! `tests/execute/`.

use super::*;

/// Custom events as clang 14 to 19 write them, then typed events, then those of LLVM 5.
const IN_PLACE: &str = "eb0f 0f1f4008 0f1f4008 e8fb0f0000 90 90";
const SWAPPED: &str = "eb0f 57 56 4889f7 4889fe e8fb0f0000 5e 5f";
const ELSEWHERE: &str = "eb0f 57 56 4c89cf 4c89ee e8fb0f0000 5e 5f";
const ONLY_SIZE: &str = "eb0f 0f1f4008 56 4889d6 e8fb0f0000 5e 90";
const ONLY_POINTER: &str = "eb0f 57 4889d7 0f1f4008 e8fb0f0000 90 5f";
const ON_STACK: &str = "eb0f 57 56 4889e7 4889c6 e8fb0f0000 5e 5f";
const ROTATED: &str = "eb14 57 56 52 4889d7 4889fe 4889f2 e8fb0f0000 5a 5e 5f";
const TYPED_IN_PLACE: &str = "eb14 0f1f4008 0f1f4008 0f1f4008 e8fb0f0000 90 90 90";
const OLD: &str = "eb14 50 4889f7 4889fe 48b80000000000000000 ffd0 58";
const OLD_IN_PLACE: &str = "eb14 50 0f1f00 0f1f00 48b80000000000000000 ffd0 58";

/// The pushes of the stub, pointer last; they show the places of the arguments.
fn pushes(kind: SledKind, hex: &str) -> String {
    let arguments = EventArguments::decode(kind, &bytes(hex)).expect("a compiler's sled");
    let stub = Stub::for_event(kind, SLED, arguments, 0x40_3000, TRAMPOLINE).unwrap();
    assert!(stub.code.len() <= STUB_BYTES);
    let text = disassemble(&stub.code);
    let text = text.strip_prefix("lea rsp, qword [rsp - 0x80]; ").unwrap();
    let (pushes, rest) = text.split_once("; push 0x401007; ").unwrap();
    let (call, back) = rest.split_once("; lea rsp, qword [rsp + 0xa0]; ").unwrap();
    assert!(call.starts_with("call $-"), "{call}");
    // The address behind the sled, as an offset from the end of the stub's code.
    let behind = SLED + sled_bytes(kind) as u64;
    let distance = 0x40_3000 + stub.code.len() as u64 - behind;
    let jump = disassemble(&stub.code[stub.code.len() - 5..]);
    assert_eq!(back, jump);
    assert_eq!(jump, format!("jmp $-{distance:#x}"));
    pushes.to_owned()
}

#[test]
fn arguments_are_what_the_sources_held_before_the_sled() {
    use SledKind::{CustomEvent as Custom, CustomEventV0 as Old, TypedEvent as Typed};
    // Type (0 if there is none), size, pointer.
    let rows = [
        (Custom, IN_PLACE, "push 0x0; push rsi; push rdi"),
        (Custom, SWAPPED, "push 0x0; push rdi; push rsi"),
        (Custom, ELSEWHERE, "push 0x0; push r13; push r9"),
        (Custom, ONLY_SIZE, "push 0x0; push rdx; push rdi"),
        (Custom, ONLY_POINTER, "push 0x0; push rsi; push rdx"),
        // The stack pointer of the program, not of the stub.
        (
            Custom,
            ON_STACK,
            "push 0x0; push rax; push rax; lea rax, qword [rsp + 0x98]; xchg qword [rsp], rax",
        ),
        (Typed, ROTATED, "push rdx; push rsi; push rdi"),
        (Typed, TYPED_IN_PLACE, "push rdi; push rdx; push rsi"),
        (Old, OLD, "push 0x0; push rdi; push rsi"),
        (Old, OLD_IN_PLACE, "push 0x0; push rsi; push rdi"),
    ];
    for (kind, hex, text) in rows {
        assert_eq!(pushes(kind, hex), text, "{kind:?} {hex}");
    }
}

#[test]
fn events_in_every_state() {
    let rows = [
        (SledKind::CustomEvent, SWAPPED, "jmp $+0xf"),
        (SledKind::TypedEvent, ROTATED, "jmp $+0x14"),
        (SledKind::CustomEventV0, OLD, "jmp $+0x14"),
    ];
    for (kind, hex, head) in rows {
        let mut sled = bytes(hex);
        assert_eq!(sled.len(), sled_bytes(kind), "{kind:?}");
        assert_eq!(classify(kind, SLED, &sled), State::Compiled, "{kind:?}");
        let arguments = EventArguments::decode(kind, &sled).unwrap();
        let target = 0x40_3000;
        let stub = Stub::for_event(kind, SLED, arguments, target, TRAMPOLINE).unwrap();
        let from = usize::from(stub.staging.offset);
        sled[from..from + stub.staging.bytes().len()].copy_from_slice(stub.staging.bytes());
        assert_eq!(
            disassemble(&sled[..7]),
            format!("{head}; jmp $+0x1ff9"),
            "{kind:?}"
        );
        assert_eq!(classify(kind, SLED, &sled), State::Staged { target });
        let switch = switch(kind);
        assert_eq!(sled[usize::from(switch.offset)], switch.off, "{kind:?}");
        sled[usize::from(switch.offset)] = switch.on;
        assert_eq!(disassemble(&sled[..7]), "jmp $+0x0; jmp $+0x1ff9");
        assert_eq!(classify(kind, SLED, &sled), State::On { target });
    }
}

#[test]
fn bytes_that_no_compiler_writes_are_left_alone() {
    use SledKind::{CustomEvent as Custom, CustomEventV0 as Old, TypedEvent as Typed};
    let rows = [
        (
            Custom,
            "6690 57 56 4889f7 4889fe e8fb0f0000 5e 5f",
            State::Runtime,
        ),
        (
            Typed,
            "6690 57 56 52 4889d7 4889fe 4889f2 e8fb0f0000 5a 5e 5f",
            State::Runtime,
        ),
        (
            Custom,
            "cc0f 57 56 4889f7 4889fe e8fb0f0000 5e 5f",
            State::Breakpoint,
        ),
        // Another kind's sled, and a sled that is cut off.
        (Custom, OLD, State::Foreign),
        (Custom, ROTATED, State::Foreign),
        (Old, ROTATED, State::Foreign),
        (Typed, OLD, State::Foreign),
        (Typed, SWAPPED, State::Foreign),
        (
            Custom,
            "eb0f 57 56 4889f7 4889fe e8fb0f0000 5e",
            State::Foreign,
        ),
        (Custom, "", State::Foreign),
        (Custom, "eb0f", State::Foreign),
        // Other registers written, pushed, popped, another order.
        (
            Custom,
            "eb0f 57 56 4889f2 4889fe e8fb0f0000 5e 5f",
            State::Foreign,
        ),
        (
            Custom,
            "eb0f 50 56 4889f7 4889fe e8fb0f0000 5e 5f",
            State::Foreign,
        ),
        (
            Custom,
            "eb0f 57 56 4889f7 4889fe e8fb0f0000 5f 5e",
            State::Foreign,
        ),
        (
            Custom,
            "eb0f 57 56 4889fe 4889f7 e8fb0f0000 5e 5f",
            State::Foreign,
        ),
        (
            Custom,
            "eb0f 57 56 4889f7 4889fe e8fb0f0000 90 5f",
            State::Foreign,
        ),
        // Half a register, a load, a jump for the call, no call.
        (
            Custom,
            "eb0f 57 56 6689f7 4889fe e8fb0f0000 5e 5f",
            State::Foreign,
        ),
        (
            Custom,
            "eb0f 57 56 488b3e 4889fe e8fb0f0000 5e 5f",
            State::Foreign,
        ),
        (
            Custom,
            "eb0f 57 56 4889f7 4889fe e9fb0f0000 5e 5f",
            State::Foreign,
        ),
        (
            Custom,
            "eb0f 57 56 4889f7 4889fe 0f1f440000 5e 5f",
            State::Foreign,
        ),
        // On, but not by xrayd; off by another distance.
        (
            Custom,
            "eb00 57 56 4889f7 4889fe e8fb0f0000 5e 5f",
            State::Foreign,
        ),
        (
            Custom,
            "eb0e 57 56 4889f7 4889fe e8fb0f0000 5e 5f",
            State::Foreign,
        ),
        (
            Custom,
            "eb14 e9f91f0000 89f74889fee8fb0f 5e5f",
            State::Foreign,
        ),
        (
            Old,
            "eb14 50 4889f7 4889fe 48b80000000000000000 ffd1 58",
            State::Foreign,
        ),
        (
            Old,
            "eb14 51 4889f7 4889fe 48b80000000000000000 ffd0 58",
            State::Foreign,
        ),
    ];
    for (kind, hex, state) in rows {
        assert_eq!(classify(kind, SLED, &bytes(hex)), state, "{kind:?} {hex}");
    }
}

#[test]
fn three_arguments_on_the_stack_pointer_do_not_fit_a_stub() {
    let hex = "eb14 57 56 52 4889e7 4889e6 4889e2 e8fb0f0000 5a 5e 5f";
    let arguments = EventArguments::decode(SledKind::TypedEvent, &bytes(hex)).unwrap();
    let stub = Stub::for_event(SledKind::TypedEvent, SLED, arguments, 0x40_3000, TRAMPOLINE);
    assert!(
        matches!(stub, Err(EncodeError::Assembler(_))),
        "no program says that: {stub:x?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// One wrong byte anywhere makes it another sled, or none. Reading it never panics.
    #[test]
    fn a_sled_with_any_other_byte_is_read_with_care(at in 0..22usize, value: u8) {
        for (kind, hex) in [
            (SledKind::CustomEvent, SWAPPED),
            (SledKind::TypedEvent, ROTATED),
            (SledKind::CustomEventV0, OLD),
        ] {
            let mut sled = bytes(hex);
            if let Some(byte) = sled.get_mut(at) {
                *byte = value;
            }
            if let Some(arguments) = EventArguments::decode(kind, &sled)
                && let Ok(stub) = Stub::for_event(kind, SLED, arguments, 0x40_3000, TRAMPOLINE)
            {
                prop_assert!(stub.code.len() <= STUB_BYTES);
            }
        }
    }
}
