//! The readers of object files, ELF and Mach-O: instrumentation map, symbols, source lines. Other
//! input is read as a map in YAML.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xray_trace::instr_map::{FunctionNames, InstrMap, Object, SourceMap};

fuzz_target!(|input: &[u8]| {
    if let Ok(map) = InstrMap::read(input) {
        let mut text = Vec::new();
        map.write_yaml(FunctionNames::Demangled, &mut text)
            .expect("a vector takes everything");
        // The reader accepts the writer's output.
        let again = InstrMap::read(&text).expect("our own YAML");
        assert_eq!(map.sleds(), again.sleds());
    }
    let addresses: Vec<_> = match Object::parse_any(input) {
        Ok(mut object) => {
            // The input serves as its own debug file, because that has the same build id.
            let _ = object.add_symbols_from(input);
            for function in object.functions() {
                let sleds = object.sleds_of(function);
                assert!(!sleds.is_empty(), "a function has sleds");
            }
            for sled in object.sleds() {
                let _ = object.address_to_offset(sled.address);
            }
            object.sleds().iter().map(|sled| sled.address).collect()
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            vec![xray_trace::FileAddr(0x1000)]
        }
    };
    let known = addresses.clone();
    if let Ok(map) = SourceMap::parse(input, addresses) {
        for address in known {
            let _ = map.lookup(address);
        }
    }
});
