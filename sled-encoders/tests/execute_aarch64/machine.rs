//! A target in the emulator: table, rings, trampolines, and functions made of staged sleds. The
//! tests beside it run them.

use std::{fs::File, os::unix::fs::PermissionsExt, path::Path};

use dynasm::dynasm;
use dynasmrt::{DynasmApi, DynasmLabelApi, VecAssembler, aarch64::Aarch64Relocation};
use shm_ring::{
    Consumer, Geometry, Item, Mapping, Producer, SharedMemory,
    layout::{LINE_BYTES, control, rings, slot, table},
    view::TICKS,
};
use sled_encoders::{
    SledKind,
    aarch64::{TrampolineSpec, Trampolines, call_site, stage, switch},
};

use crate::{
    gdb::{Gdb, Registers},
    image::{READ_COUNTER, SET_TLS, SYSTEM_CALL, image},
};

/// Functions of one kind. The first half is near its trampoline, the other half beyond the reach of
/// a `bl`.
pub(crate) const COPIES: u32 = 8;
const CODE: u64 = 0x10_0000_0000;
const TABLE: u64 = 0x10_1000_0000;
const STACK: u64 = 0x10_2000_0000;
const RINGS: u64 = 0x10_3000_0000;
/// More than 128 MiB from the trampolines.
const FAR_CODE: u64 = 0x11_0000_0000;
const CODE_BYTES: u64 = 64 << 10;
const STACK_BYTES: u64 = 256 << 10;
/// The thread's control block, and the offset of the thread's id from there.
const TLS: u64 = STACK + STACK_BYTES - 4096;
const TID_OFFSET: i32 = -0x6d0;
pub(crate) const TID: u32 = 4711;
/// The offset of the functions in the code.
const FUNCTIONS: u64 = 4096;
const FUNCTION_BYTES: u64 = 64;
/// The offset of the last code: `burst` below, and the end of every call.
const BURST: u64 = 32 << 10;
/// N, Z, C, V.
const FLAGS: u32 = 0xf000_0000;

/// The kind of a function of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    /// An entry sled, then `ret`.
    Entry,
    /// An exit sled and `ret`.
    Exit,
    /// A tail sled, then `br` through this register to a `ret`.
    Tail(u8),
    /// An entry sled with argument, then `ret`.
    Argument,
}

/// The machine.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) gdb: Gdb,
    pub(crate) geometry: Geometry,
    table: Mapping,
    rings: Mapping,
    stack: Mapping,
    /// The trampolines' instructions, from `CODE` on.
    code: Vec<u8>,
    end: u64,
    /// The registers of a process at its start.
    first: Registers,
    _folder: tempfile::TempDir,
}

/// The home slot, its control line and its ring, and the stack of a call.
#[derive(Debug)]
pub(crate) struct Saved {
    slot: Vec<u64>,
    control: Vec<u64>,
    ring: Vec<u64>,
    stack: Vec<u64>,
}

/// The stack at the start of a call, from the start of the area. Above it is more room than a call
/// uses.
const STACK_TOP: u64 = STACK_BYTES / 4;
/// The distance to another stack, further than a view reaches.
pub(crate) const OTHER_STACK: u64 = STACK_BYTES / 2;
/// The stack pointer at the start of a call.
pub(crate) const SP: u64 = STACK + STACK_TOP;
const FRAMES: u64 = 256;

// === impl Function ===

impl Function {
    pub(crate) const PLAIN: [Self; 7] = [
        Self::Entry,
        Self::Exit,
        Self::Argument,
        Self::Tail(1),
        Self::Tail(9),
        Self::Tail(16),
        Self::Tail(17),
    ];

    fn kind(self) -> SledKind {
        match self {
            Self::Entry => SledKind::Entry,
            Self::Exit => SledKind::Exit,
            Self::Tail(_) => SledKind::TailExit,
            Self::Argument => SledKind::EntryArgument,
        }
    }

    fn number(self) -> u64 {
        match self {
            Self::Entry => 0,
            Self::Exit => 1,
            Self::Argument => 2,
            Self::Tail(register) => 3 + u64::from(register),
        }
    }
}

fn address(function: Function, copy: u32) -> u64 {
    assert!(copy < COPIES, "so many copies exist");
    let code = if copy < COPIES / 2 { CODE } else { FAR_CODE };
    let index = function.number() * u64::from(COPIES) + u64::from(copy);
    code + FUNCTIONS + index * FUNCTION_BYTES
}

/// The low half of the word that an event of the function leaves.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the low half names the site"
)]
pub(crate) fn site(function: Function, copy: u32) -> u32 {
    call_site(address(function, copy)) as u32
}

/// A staged function that is on.
fn function(function: Function, copy: u32, trampolines: &Trampolines) -> Vec<u8> {
    let address = address(function, copy);
    let staging = stage(address, trampolines.target(function.kind()).unwrap()).unwrap();
    let last: u32 = match function {
        Function::Tail(register) => 0xd61f_0000 | u32::from(register) << 5,
        Function::Entry | Function::Exit | Function::Argument => 0xd65f_03c0,
    };
    [&switch().on, staging.bytes(), &last.to_le_bytes()].concat()
}

/// Code that calls the function at x19 x20 times, with x21 as its growing argument. Returns it with
/// the offset of its end.
fn burst() -> (Vec<u8>, u64) {
    let mut a = VecAssembler::<Aarch64Relocation>::new(0);
    dynasm!(a
        ; .arch aarch64
        ; again:
        ; mov x0, x21
        ; blr x19
        ; add x21, x21, #1
        ; sub x20, x20, #1
        ; cbnz x20, <again
    );
    let end = a.offset().0 as u64;
    // The end of a call, and the target of a tail jump.
    dynasm!(a ; .arch aarch64 ; nop ; ret);
    (a.finalize().unwrap(), end)
}

fn write(code: &mut [u8], at: u64, bytes: &[u8]) {
    let at = usize::try_from(at).unwrap();
    code[at..at + bytes.len()].copy_from_slice(bytes);
}

fn mapped(path: &Path, content: &[u8]) -> Mapping {
    std::fs::write(path, content).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    Mapping::new(&file, 0, content.len() as u64).unwrap()
}

fn sparse(path: &Path, bytes: u64) -> Mapping {
    let file = File::create_new(path).unwrap();
    file.set_len(bytes).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    Mapping::new(&file, 0, bytes).unwrap()
}

fn words(memory: &Mapping, offset: u64, bytes: u64) -> Vec<u64> {
    let places = (offset..offset + bytes).step_by(8);
    places.map(|place| memory.load(place)).collect()
}

fn put(memory: &Mapping, offset: u64, words: &[u64]) {
    for (place, word) in (offset..).step_by(8).zip(words) {
        memory.store(place, *word);
    }
}

// === impl Machine ===

impl Machine {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let geometry = Geometry::new(Geometry::MIN_RING_BYTES, 1).unwrap();
        let spec = TrampolineSpec {
            origin: CODE,
            tid_offset: TID_OFFSET,
            table: TABLE,
            rings: RINGS,
            geometry,
        };
        let trampolines = Trampolines::assemble(&spec).unwrap();
        let (burst, end) = burst();
        let mut near = vec![0; usize::try_from(CODE_BYTES).unwrap()];
        let mut far = near.clone();
        write(&mut near, 0, &trampolines.code);
        write(&mut near, BURST, &burst);
        for kind in Function::PLAIN {
            for copy in 0..COPIES {
                let code = if copy < COPIES / 2 {
                    &mut near
                } else {
                    &mut far
                };
                let at = address(kind, copy) % CODE_BYTES;
                write(code, at, &function(kind, copy, &trampolines));
            }
        }
        mapped(&path("near"), &near);
        mapped(&path("far"), &far);
        let table = sparse(&path("table"), geometry.table_bytes());
        let rings = sparse(&path("rings"), geometry.rings_bytes());
        let stack = sparse(&path("stack"), STACK_BYTES);
        let place = (TLS - STACK).wrapping_add_signed(i64::from(TID_OFFSET));
        assert_eq!(place % 8, 0);
        stack.store(place, u64::from(TID));

        let areas = [
            ("near", CODE, CODE_BYTES, 5),
            ("far", FAR_CODE, CODE_BYTES, 5),
            ("table", TABLE, geometry.table_bytes(), 3),
            ("rings", RINGS, geometry.rings_bytes(), 3),
            ("stack", STACK, STACK_BYTES, 3),
        ];
        let paths = areas.map(|(name, ..)| path(name));
        let (program, texts) = image(&paths.each_ref().map(|path| path.as_os_str()));
        std::fs::write(path("program"), program).unwrap();
        let executable = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(path("program"), executable).unwrap();
        let mut gdb = Gdb::start(&path("program"), folder.path());
        let first = gdb.registers();
        let mut machine = Self {
            gdb,
            geometry,
            table,
            rings,
            stack,
            code: trampolines.code,
            end: CODE + BURST + end,
            first,
            _folder: folder,
        };
        for ((_, at, bytes, protection), text) in areas.into_iter().zip(texts) {
            // openat(AT_FDCWD, path, O_RDWR)
            let file = machine.system_call(56, [(-100i64).cast_unsigned(), text, 2, 0, 0, 0]);
            // mmap(…, MAP_SHARED | MAP_FIXED, …)
            let got = machine.system_call(222, [at, bytes, protection, 0x11, file, 0]);
            assert_eq!(got, at);
        }
        machine.system(SET_TLS, 0, [TLS, 0, 0, 0, 0, 0]);
        let end = machine.end;
        machine.gdb.break_at(end);
        machine.reset();
        machine
    }

    fn system_call(&mut self, number: u64, arguments: [u64; 6]) -> u64 {
        self.system(SYSTEM_CALL, number, arguments)
    }

    /// Executes the instruction at `pc`.
    fn system(&mut self, pc: u64, number: u64, arguments: [u64; 6]) -> u64 {
        let mut registers = self.first.clone();
        registers.x[..6].copy_from_slice(&arguments);
        registers.x[8] = number;
        registers.pc = pc;
        self.gdb.set_registers(&registers);
        self.gdb.step();
        self.gdb.registers().x[0]
    }

    /// A different value in every register, at a function's first instruction.
    pub(crate) fn at(&self, function: Function, copy: u32, argument: u64) -> Registers {
        let mut registers = self.first.clone();
        registers.x = std::array::from_fn(|i| 0x0101_0101_0101_0101u64.wrapping_mul(i as u64 + 3));
        registers.x[0] = argument;
        registers.x[30] = self.end;
        if let Function::Tail(register) = function {
            registers.x[usize::from(register)] = self.end + 4;
        }
        registers.sp = SP;
        registers.pc = address(function, copy);
        registers.cpsr |= FLAGS;
        registers
    }

    /// Calls a function with arbitrary registers, which must all come back.
    pub(crate) fn call(&mut self, function: Function, copy: u32, argument: u64) {
        let registers = self.at(function, copy, argument);
        self.call_with(&registers);
    }

    pub(crate) fn call_with(&mut self, registers: &Registers) {
        self.gdb.set_registers(registers);
        let expected = self.gdb.registers();
        self.gdb.go();
        self.assert_returned(expected);
    }

    /// Fails unless the call that began with `registers` is over and has kept them.
    pub(crate) fn assert_returned(&mut self, registers: Registers) {
        let after = self.gdb.registers();
        let expected = Registers {
            pc: self.end,
            ..registers
        };
        assert_eq!(after, expected);
    }

    /// The end of the loop that begins with the exclusive load at `pc`, if there is one. A thread
    /// that is stopped in the loop loses its reservation, so single steps never reach the end.
    pub(crate) fn loop_end(&self, pc: u64) -> Option<u64> {
        let from = usize::try_from(pc.checked_sub(CODE)?).unwrap();
        let words = self.code.get(from..)?.chunks_exact(4);
        let mut words = words.map(|word| u32::from_le_bytes(*word.first_chunk().unwrap()));
        // ldxr, ldaxr; then stxr, stlxr and a cbnz behind it.
        let is_exclusive = |word: u32, load: u32| word & 0xbfe0_0000 == 0x8800_0000 | load;
        if !is_exclusive(words.next()?, 1 << 22) {
            return None;
        }
        let store = words.position(|word| is_exclusive(word, 0)).unwrap() as u64;
        Some(pc + 4 * (store + 3))
    }

    /// The address of the only instruction of the trampolines that has this word.
    pub(crate) fn only(&self, instruction: u32) -> u64 {
        let words = self.code.chunks_exact(4).zip((CODE..).step_by(4));
        let mut found = words.filter(|(word, _)| **word == instruction.to_le_bytes());
        let (_, address) = found.next().unwrap();
        assert!(found.next().is_none(), "{instruction:#x} is there twice");
        address
    }

    pub(crate) fn is_over(&self, registers: &Registers) -> bool {
        registers.pc == self.end
    }

    /// Prepares `count` calls with `argument`, one more each time, as those of a handler or a loop.
    pub(crate) fn prepare_burst(
        &mut self,
        (function, copy): (Function, u32),
        argument: u64,
        count: u64,
        sp: u64,
    ) {
        let mut registers = self.at(function, copy, 0);
        registers.x[19] = registers.pc;
        registers.x[20] = count;
        registers.x[21] = argument;
        registers.sp = sp;
        registers.pc = CODE + BURST;
        self.gdb.set_registers(&registers);
    }

    /// Makes `count` events, as a handler that interrupts `registers` does, `above` bytes above its
    /// stack or right below. Then the interrupted registers are back. Returns the handler's place
    /// on the stack.
    pub(crate) fn handle(
        &mut self,
        (interrupted, above): (&Registers, u64),
        what: (Function, u32),
        argument: u64,
        count: u64,
    ) -> u64 {
        let sp = interrupted.sp - 512 + above;
        self.prepare_burst(what, argument, count, sp);
        self.gdb.go();
        self.gdb.set_registers(interrupted);
        sp
    }

    pub(crate) fn burst(&mut self, what: (Function, u32), count: u64) {
        self.prepare_burst(what, 0, count, SP);
        self.gdb.go();
    }

    /// The same without waiting for the end: the test calls [`Machine::is_running`] until it is
    /// false.
    pub(crate) fn start_burst(&mut self, what: (Function, u32), count: u64) {
        self.prepare_burst(what, 0, count, SP);
        self.gdb.send("c");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        !self.gdb.has_stopped()
    }

    pub(crate) fn set_live(&self, live: u64) {
        self.table.store(table::LIVE, live);
    }

    /// The counter when recording was closed.
    pub(crate) fn closed_at(&self) -> u64 {
        self.table.load(table::CLOSED_AT)
    }

    pub(crate) fn live(&self) -> u64 {
        self.table.load(table::LIVE)
    }

    pub(crate) fn home(&self) -> u32 {
        TID & (self.geometry.slots() - 1)
    }

    pub(crate) fn slot(&self, index: u32, field: u64) -> u64 {
        self.table.load(self.geometry.slot_offset(index) + field)
    }

    pub(crate) fn set_slot(&self, index: u32, field: u64, value: u64) {
        self.table
            .store(self.geometry.slot_offset(index) + field, value);
    }

    /// The counter. Registers must be set after it.
    pub(crate) fn now(&mut self) -> u64 {
        self.system(READ_COUNTER, 0, [0; 6])
    }

    /// Makes the home slot's view seem to have begun a moment ago, so that the next event is not
    /// too late for it. Times are wrong then, and registers must be set after it.
    pub(crate) fn refresh_view(&mut self) {
        let since = self.now() - TICKS / 8;
        self.set_slot(self.home(), slot::SINCE, since);
    }

    pub(crate) fn control(&self, index: u32, field: u64) -> u64 {
        self.rings.load(self.geometry.control_offset(index) + field)
    }

    pub(crate) fn set_control(&self, index: u32, field: u64, value: u64) {
        self.rings
            .store(self.geometry.control_offset(index) + field, value);
    }

    pub(crate) fn lost(&self) -> u64 {
        self.control(self.home(), control::LOST)
    }

    /// Sets a word of the rings' header.
    pub(crate) fn set_rings_word(&self, field: u64, value: u64) {
        self.rings.store(field, value);
    }

    pub(crate) fn no_slot(&self) -> u64 {
        self.rings.load(rings::NO_SLOT)
    }

    pub(crate) fn buckets_taken(&self) -> u64 {
        self.rings.load(rings::BUCKETS_TAKEN)
    }

    pub(crate) fn bucket(&self, index: u32, field: u64) -> u64 {
        self.rings.load(self.geometry.bucket_offset(index) + field)
    }

    pub(crate) fn set_bucket(&self, index: u32, field: u64, value: u64) {
        self.rings
            .store(self.geometry.bucket_offset(index) + field, value);
    }

    pub(crate) fn word(&self, index: u32, word: u64) -> u64 {
        self.rings.load(self.geometry.ring_offset(index) + 8 * word)
    }

    pub(crate) fn ring_address(&self, index: u32) -> u64 {
        RINGS + self.geometry.ring_offset(index)
    }

    /// Renews everything.
    pub(crate) fn reset(&self) {
        self.table.zero(0, self.geometry.table_bytes());
        self.rings.zero(0, self.geometry.ring_offset(0));
        for index in 0..PROBED {
            let index = (self.home() + index) % self.geometry.slots();
            self.rings
                .zero(self.geometry.ring_offset(index), self.geometry.ring_bytes());
        }
        self.set_live(1);
        self.table.store(table::MINE, 1);
    }

    pub(crate) fn save(&self) -> Saved {
        let (g, home) = (self.geometry, self.home());
        Saved {
            slot: words(&self.table, g.slot_offset(home), LINE_BYTES),
            control: words(&self.rings, g.control_offset(home), LINE_BYTES),
            ring: words(&self.rings, g.ring_offset(home), g.ring_bytes()),
            stack: words(&self.stack, STACK_TOP - FRAMES, FRAMES),
        }
    }

    pub(crate) fn restore(&self, saved: &Saved) {
        let (g, home) = (self.geometry, self.home());
        put(&self.table, g.slot_offset(home), &saved.slot);
        put(&self.rings, g.control_offset(home), &saved.control);
        put(&self.rings, g.ring_offset(home), &saved.ring);
        put(&self.stack, STACK_TOP - FRAMES, &saved.stack);
    }

    pub(crate) fn consumer(&self, index: u32) -> Consumer {
        Consumer::resume(&self.rings, self.geometry, index)
    }

    /// Reads all events. There must be no hole.
    pub(crate) fn drain(&self, consumer: &mut Consumer) -> Vec<Item> {
        let mut items = Vec::new();
        let drained = consumer.drain(&self.rings, Producer::Alive, 0, u64::MAX, |item| {
            items.push(item)
        });
        assert!(drained.at_end && !drained.at_hole, "{drained:?}");
        items
    }

    /// Reads all events, past all holes.
    pub(crate) fn drain_past_holes(&self, consumer: &mut Consumer) -> Vec<Item> {
        let mut items = Vec::new();
        for looks in 0.. {
            let now = looks * Consumer::HOLE_PATIENCE_MS;
            let take = |item| items.push(item);
            let drained = consumer.drain(&self.rings, Producer::Alive, now, u64::MAX, take);
            if !drained.at_hole {
                break;
            }
        }
        items
    }

    /// True if a context is in the slow path.
    pub(crate) fn is_parked(&self) -> bool {
        let head = self.slot(self.home(), slot::HEAD);
        head & slot::PARKED != 0 && self.control(self.home(), control::BUSY) != 0
    }

    /// Reads while words are written.
    pub(crate) fn drain_running(&self, consumer: &mut Consumer, sink: impl FnMut(Item)) -> u64 {
        consumer
            .drain(&self.rings, Producer::Alive, 0, u64::MAX, sink)
            .words
    }

    pub(crate) fn unreported(&self, consumer: &Consumer) -> u64 {
        consumer.unreported_losses(&self.rings)
    }
}

/// Rings that tests use, from the home ring on.
const PROBED: u32 = 3;
