//! `xrayctl functions`.

use std::io;

use serde::Serialize;
use xrayd_proto::v1::FunctionInfo;

use super::{Cell, Column, Look, Table, Tone};
use crate::values;

/// The functions of one or more processes.
#[derive(Debug, Serialize)]
pub(crate) struct Functions {
    pub(crate) functions: Vec<FunctionInfo>,
}

// === impl Functions ===

impl Functions {
    /// Writes the listing. Its first column is the process if there are several.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let mut processes = self.functions.iter().map(|row| row.pid);
        let first = processes.next();
        if processes.all(|pid| Some(pid) == first) {
            self.render_columns(out, look, columns(), cells)
        } else {
            let [id, module, name, source, bytes, sleds, state, calls] = columns();
            let columns = [
                Column::right("PID"),
                id,
                module,
                name,
                source,
                bytes,
                sleds,
                state,
                calls,
            ];
            self.render_columns(out, look, columns, |row| {
                let [id, module, name, source, bytes, sleds, state, calls] = cells(row);
                [
                    row.pid.to_string().into(),
                    id,
                    module,
                    name,
                    source,
                    bytes,
                    sleds,
                    state,
                    calls,
                ]
            })
        }
    }

    fn render_columns<const N: usize>(
        &self,
        out: &mut dyn io::Write,
        look: Look,
        columns: [Column; N],
        of_row: impl Fn(&FunctionInfo) -> [Cell; N],
    ) -> io::Result<()> {
        let mut table = Table::new(columns);
        self.functions
            .iter()
            .for_each(|row| table.push(of_row(row)));
        table.render(out, look)
    }
}

fn columns() -> [Column; 8] {
    [
        Column::right("ID"),
        Column::left("MODULE").minor(3),
        Column::elastic("NAME"),
        Column::elastic("SOURCE").minor(4),
        Column::right("BYTES").minor(6),
        Column::right("SLEDS").minor(5),
        Column::left("STATE"),
        Column::right("CALLS").minor(1),
    ]
}

fn cells(row: &FunctionInfo) -> [Cell; 8] {
    let file = row.module.rsplit('/').next().unwrap_or(&row.module);
    let state = match row.enabled {
        true => {
            let values = values::in_words(row.capture.as_ref());
            match row.suppressed {
                true => Cell::toned(format!("suppressed{values}"), Tone::Warning),
                false => Cell::toned(format!("on{values}"), Tone::Good),
            }
        }
        false => Cell::toned("off", Tone::Dim),
    };
    [
        row.id.to_string().into(),
        Cell::toned(file, Tone::Dim),
        Cell::function(&row.name),
        Cell::toned(&row.source, Tone::Dim),
        match row.size {
            0 => Cell::toned("", Tone::Dim),
            bytes => bytes.to_string().into(),
        },
        match row.event_sleds {
            0 => row.sleds.to_string(),
            events => format!("{}+{events}e", row.sleds.saturating_sub(events)),
        }
        .into(),
        state,
        row.calls.to_string().into(),
    ]
}

#[cfg(test)]
mod tests {
    use xrayd_proto::v1::Capture;

    use super::super::golden;
    use super::*;

    fn function(pid: u32, id: u32, name: &str, enabled: bool) -> FunctionInfo {
        FunctionInfo {
            pid,
            id,
            module: "/usr/lib/libfoo.so".into(),
            name: name.into(),
            symbol: "_Zfoo".into(),
            source: if enabled {
                "src/foo.cc:12".into()
            } else {
                String::new()
            },
            sleds: 2 + id % 2,
            event_sleds: id % 2,
            enabled,
            suppressed: id == 0 && pid == 7,
            calls: u64::from(id) * 1000,
            xray_id: id + 1,
            address: 0x4000,
            size: u64::from(id % 2) * 250,
            always_instrumented: id == 11,
            capture: (id == 11).then_some(Capture {
                arguments: 2,
                result: true,
            }),
        }
    }

    #[test]
    fn rows_look_as_agreed() {
        let one = Functions {
            functions: vec![
                function(7, 0, "ns::a(int)", true),
                function(7, 11, "main", true),
                function(7, 12, "exit", false),
            ],
        };
        golden::check("functions.txt", |out| one.render(out, Look::PLAIN));
        golden::check("functions-coloured.txt", |out| {
            one.render(
                out,
                Look {
                    colour: true,
                    width: Some(60),
                    ..Look::PLAIN
                },
            )
        });
        golden::check_json("functions.json", &one);
        let two = Functions {
            functions: vec![function(7, 0, "f", true), function(81, 0, "f", false)],
        };
        let names = ["f", "ns::a_function_with_quite_a_name(std::vector<int>)"];
        let long = Functions {
            functions: names.map(|name| function(7, 123, name, true)).into(),
        };
        golden::check_narrow("functions-narrow.txt", |out, look| long.render(out, look));
        golden::check("functions-two.txt", |out| two.render(out, Look::PLAIN));
    }
}
