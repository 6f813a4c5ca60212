//! The ids of functions in LLVM's logs: packed, unchanged from log to log, and never the same for
//! two functions.

use std::collections::BTreeSet;
use std::io::{Seek as _, Write as _};

use xray_trace::container::Writer;
use xray_trace::model::{Event, FunctionId, ModuleId, NoXrayId, Trace, XrayIds};
use xray_trace::sink::{Basic, Fdr, Report, Sink, Yaml};
use xray_trace::source::{Options, open};

use crate::common::{Enter, Exit, call, function, module, process, thread};

/// A trace of these functions, each given by its module and its id in the map. One thread calls
/// each of them once. Modules 0 and 1 belong to the first process, and so on. The modules in `same`
/// have the file of module 0 again.
fn trace(functions: &[(u32, u32)], modules: u32, same: &[u32]) -> Trace {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for id in 0..modules.div_ceil(2) {
        writer.add(&process(id)).unwrap();
    }
    for id in 0..modules {
        let mut module = module(if same.contains(&id) { 0 } else { id }, id / 2);
        module.id = ModuleId(id);
        writer.add(&module).unwrap();
    }
    for ((module, xray_id), id) in functions.iter().zip(0..) {
        let mut described = function(id, *module, "f");
        described.xray_id = *xray_id;
        writer.add(&described).unwrap();
    }
    writer.add(&thread(0, 0)).unwrap();
    let count = u32::try_from(functions.len()).unwrap();
    let events: Vec<Event> = (0..count)
        .flat_map(|id| {
            let at = 10 * u64::from(id);
            [call(at + 1, id, Enter), call(at + 2, id, Exit)]
        })
        .collect();
    for block in crate::common::blocks(0, &events, 1000) {
        writer.block(&block).unwrap();
    }
    Trace::read(writer.into_inner().as_slice()).unwrap()
}

fn written(sink: &dyn Sink, trace: &Trace) -> (Vec<u8>, Report) {
    let mut bytes = Vec::new();
    let report = sink.write(trace, &mut bytes).unwrap();
    (bytes, report)
}

fn opened(bytes: &[u8]) -> Trace {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    open(file, &Options::default()).unwrap().trace
}

/// The packed ids of a trace's functions, in the order of the functions.
fn packed(trace: &Trace) -> Vec<u32> {
    let ids = XrayIds::new(trace);
    let functions = trace.functions().iter();
    functions.map(|it| ids.packed(it.id).unwrap()).collect()
}

#[test]
fn an_id_is_the_object_and_the_function_in_it() {
    let trace = trace(&[(0, 1), (0, 0xff_ffff), (1, 1), (2, 7), (3, 7)], 4, &[2]);
    // The third module is the first one's file, in another process.
    let expected = [1, 0xff_ffff, 1 << 24 | 1, 7, 2 << 24 | 7];
    assert_eq!(packed(&trace), expected);
    let ids = XrayIds::new(&trace);
    let shown: Vec<_> = (0..5).map(|id| ids.shown(FunctionId(id))).collect();
    assert_eq!(shown, expected.map(u64::from));
}

/// The main program has number 0, wherever it stands among the modules. Without functions of its
/// own, it still has that number, and the first library has 1.
#[test]
fn object_0_is_the_main_program() {
    let numbered = |modules: [u32; 3]| {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer.add(&process(0)).unwrap();
        for (id, file) in (0..).zip(modules) {
            let mut module = module(file, 0);
            module.id = ModuleId(id);
            writer.add(&module).unwrap();
            let mut described = function(id, id, "f");
            described.xray_id = 1;
            writer.add(&described).unwrap();
        }
        packed(&Trace::read(writer.into_inner().as_slice()).unwrap())
    };
    let in_object = |object: u32| object << 24 | 1;
    assert_eq!(numbered([5, 0, 7]), [1, 0, 2].map(in_object));
    assert_eq!(numbered([5, 6, 7]), [1, 2, 3].map(in_object));
}

#[test]
fn a_function_without_an_id_never_shows_the_id_of_another() {
    let functions: Vec<_> = (0..300).map(|module| (module, 1)).collect();
    let great = [(0, 1 << 24 | 1), (0, 2 << 24 | 1), (299, u32::MAX)];
    let trace = trace(&[&functions[..], &great].concat(), 300, &[]);
    let ids = XrayIds::new(&trace);
    for (id, expected) in [
        (255, Ok(255 << 24 | 1)),
        (256, Err(NoXrayId::TooGreat)),
        (300, Err(NoXrayId::TooGreat)),
        (303, Err(NoXrayId::Unknown)),
    ] {
        assert_eq!(ids.packed(FunctionId(id)), expected, "{id}");
    }
    let shown: BTreeSet<_> = (0..310).map(|id| ids.shown(FunctionId(id))).collect();
    assert_eq!(shown.len(), 310);
    assert_eq!(ids.shown(FunctionId(256)), 257 << 32 | 1);

    // Each format reports once the ids that it cannot hold: those beyond 28 bits, and beyond 32.
    for (sink, calls) in [
        (&Fdr as &dyn Sink, 16),
        (&Basic::BY_TIME, 256),
        (&Yaml::BY_TIME, 256),
    ] {
        let (_, report) = written(sink, &trace);
        let left_out: Vec<_> = report
            .left_out
            .iter()
            .filter(|(what, _)| what.contains("id does not fit"))
            .map(|(_, count)| *count)
            .collect();
        assert_eq!(report.calls, calls, "{}", sink.name());
        assert_eq!(left_out, [303 - calls], "{}", sink.name());
    }
}

/// Ids that the runtime of LLVM 20 has written are unchanged in another log.
#[test]
fn ids_of_objects_are_kept_from_log_to_log() {
    for (sink, greatest) in [
        (&Fdr as &dyn Sink, 15),
        (&Basic::BY_TIME, 255),
        (&Yaml::BY_TIME, 255),
    ] {
        let functions = [(0, 3), (greatest, 0xff_ffff), (5, 1), (greatest, 2)];
        let trace = trace(&functions, 256, &[]);
        let (log, _) = written(sink, &trace);
        let again = opened(&log);
        let expected = [
            3,
            greatest << 24 | 0xff_ffff,
            5 << 24 | 1,
            greatest << 24 | 2,
        ];
        assert_eq!(packed(&again), expected, "{}", sink.name());
        // Objects without functions exist as well, so that the numbers stay.
        assert_eq!(
            again.modules().len(),
            usize::try_from(greatest).unwrap() + 1
        );
        assert_eq!(again.modules()[5].path, "object 5");
        let (second, report) = written(sink, &again);
        assert_eq!(report.calls, 4);
        assert_eq!(packed(&opened(&second)), expected, "{}", sink.name());
    }
}
