//! LLVM's logs: each reader reads every input, strictly and with salvage.
#![no_main]

use libfuzzer_sys::fuzz_target;
use xray_trace::llvm::fdr::{BlockPrinter, Events, Reader};
use xray_trace::llvm::{Format, Mode, basic, profile, yaml};

fuzz_target!(|input: &[u8]| {
    let _ = Format::detect(input);
    for mode in [Mode::Strict, Mode::Salvage] {
        records(input, mode);
        events(input, mode);
        basic_mode(input, mode);
        profiles(input, mode);
        yaml_traces(input, mode);
    }
});

/// Counts an item. Fails if a reader returns more items than the input can hold.
fn count(counted: &mut usize, limit: usize) {
    *counted += 1;
    assert!(*counted <= limit, "more than {limit} pieces");
}

fn records(input: &[u8], mode: Mode) {
    let Ok(mut reader) = Reader::new(input, mode) else {
        return;
    };
    let (mut out, mut printer, mut counted) = (Vec::new(), BlockPrinter::default(), 0);
    while let Ok(Some(item)) = reader.next() {
        count(&mut counted, input.len());
        out.clear();
        let _ = printer.print(&item.record, &mut out);
    }
    assert!(reader.skipped().bytes() <= input.len() as u64);
}

fn events(input: &[u8], mode: Mode) {
    let Ok(mut events) = Events::new(input, mode) else {
        return;
    };
    let mut counted = 0;
    loop {
        match events.next() {
            Ok(Some(_)) => count(&mut counted, input.len()),
            Ok(None) => break,
            Err(error) => {
                assert!(mode == Mode::Strict && !error.to_string().is_empty());
                break;
            }
        }
    }
}

fn basic_mode(input: &[u8], mode: Mode) {
    let Ok(reader) = basic::Reader::new(input, mode) else {
        return;
    };
    let mut counted = 0;
    for record in reader {
        count(&mut counted, input.len());
        if record.is_err() {
            assert!(mode == Mode::Strict);
            break;
        }
    }
}

fn profiles(input: &[u8], mode: Mode) {
    let Ok(mut reader) = profile::Reader::new(input, mode) else {
        return;
    };
    let mut counted = 0;
    while let Ok(Some(_)) = reader.next() {
        count(&mut counted, input.len());
    }
}

fn yaml_traces(input: &[u8], mode: Mode) {
    let Ok(mut reader) = yaml::Reader::new(std::io::Cursor::new(input.to_vec()), mode) else {
        return;
    };
    let mut writer = yaml::Writer::new(Vec::new(), reader.header());
    let (mut counted, mut records) = (0, Vec::new());
    for record in reader.by_ref() {
        count(&mut counted, input.len());
        match record {
            Ok(record) => {
                writer.record(&record).expect("memory takes everything");
                records.push(record);
            }
            Err(_) => {
                assert!(mode == Mode::Strict);
                break;
            }
        }
    }
    // Records survive writing and reading.
    let text = writer.finish().expect("memory takes everything");
    let again = yaml::Reader::new(std::io::Cursor::new(text), Mode::Strict).expect("our header");
    let again = again.collect::<Result<Vec<_>, _>>().expect("our records");
    assert_eq!(again, records);
}
