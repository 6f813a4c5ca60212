//! Values of registers: each flavour, on both paths, records them and changes nothing.

use shm_ring::{
    Item,
    layout::{PAYLOAD_WORDS, control},
    word,
};

use crate::{function::Function, machine::Machine, registers::Registers};

/// The values that a call of the function records.
fn values(machine: &Machine, function: Function, registers: Registers) -> Vec<u64> {
    let mut consumer = machine.consumer(machine.home());
    let stack = machine.call_with(function, 1, registers);
    let items = machine.drain(&mut consumer);
    let [Item::Data(data)] = &items[..] else {
        panic!("{function:?}: {items:x?}")
    };
    assert_eq!((data.kind, data.sp), (word::VALUES, stack));
    assert_eq!(data.site, machine.site(function, 1), "{function:?}");
    assert_eq!(data.size as usize, data.bytes.len());
    let (values, rest) = data.bytes.as_chunks::<8>();
    assert!(rest.is_empty());
    values
        .iter()
        .map(|value| u64::from_le_bytes(*value))
        .collect()
}

#[test]
fn every_flavour_records_its_registers_and_keeps_all_of_them_and_the_flags() {
    let machine = Machine::new();
    for warm in [false, true] {
        for flags in [0, 0x8d5, 0x801, 0x0d4, 0x800, 0x400 | 0x40] {
            let registers = Registers::arbitrary().with_flags(flags);
            for count in 1..=6 {
                if !warm {
                    machine.reset();
                }
                let function = Function::Arguments(count);
                let recorded = values(&machine, function, registers);
                assert_eq!(recorded, registers.arguments()[..usize::from(count)]);
            }
            if !warm {
                machine.reset();
            }
            for result in [0, 1, u64::MAX, 0x8000_0000_0000_0000] {
                let registers = registers.with_result(result);
                let recorded = values(&machine, Function::Result, registers);
                assert_eq!(recorded, [registers.result()]);
            }
        }
    }
}

#[test]
fn a_full_ring_counts_calls_with_values_and_says_so() {
    let machine = Machine::new();
    let home = machine.home();
    let mut consumer = machine.consumer(home);
    let words = PAYLOAD_WORDS + 48u64.div_ceil(7);
    let calls = machine.geometry.ring_bytes() / 8 / words + 20;
    for number in 0..calls {
        machine.call(Function::Arguments(6), 0, number);
    }
    let lost = machine.control(home, control::LOST);
    assert!(lost > 0 && lost < calls, "{lost} of {calls}");
    let items = machine.drain(&mut consumer);
    let numbers = items.iter().map(|item| match item {
        Item::Data(data) => Machine::number_of(data),
        other => panic!("{other:?}"),
    });
    assert!(numbers.eq(0..calls - lost));
    machine.call(Function::Result, 0, 5);
    let items = machine.drain(&mut consumer);
    assert!(
        matches!(&items[..], [Item::Lost(n), Item::Data(data)] if *n == lost && Machine::number_of(data) == 5),
        "{items:?}"
    );
}
