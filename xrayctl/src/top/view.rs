//! Draws the state. Changes nothing.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table, TableState};

use super::interval::{Around, Edge, Row, rate, whole};
use super::state::{Sort, State, What};
use crate::output::{Names, text, units};

/// The heights of a bar in a trend.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const KEYS: &str = "q quit  s sort  / filter  enter callers  space on/off  t threads  p pause";

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, state: &State) {
    let [head, losses, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(heading(state), head);
    frame.render_widget(weather(state), losses);
    match &state.inside {
        Some(name) => around(frame, state, name, body),
        None => rows(frame, state, body),
    }
    frame.render_widget(footer(state), foot);
}

fn heading(state: &State) -> Line<'static> {
    let header = &state.interval.header;
    // `ps` shows its arguments.
    let program = header.command.split(' ').next().unwrap_or_default();
    let program = text::printable(program.rsplit('/').next().unwrap_or(program));
    let what = format!("{} ({})", text::cut(&program, 24), header.pid);
    let rest = format!(
        "  {} calls/s  {} of {} functions on",
        rate(state.interval.calls_per_second),
        header.functions_on,
        header.functions,
    );
    let paused = if state.paused { "  paused" } else { "" };
    Line::from(vec![
        Span::styled(what, Style::new().add_modifier(Modifier::BOLD)),
        Span::raw(rest),
        Span::styled(paused, Style::new().fg(Color::Yellow)),
    ])
}

/// The cost and the losses of tracing.
fn weather(state: &State) -> Line<'static> {
    let interval = &state.interval;
    let lost = match interval.lost_in_interval {
        0 => Span::styled("0 lost", Style::new().fg(Color::Green)),
        lost => Span::styled(
            format!("{} lost", units::count(lost)),
            Style::new().fg(Color::Red),
        ),
    };
    let all = match interval.header.lost {
        0 => String::new(),
        lost => format!(" ({} since attach)", units::count(lost)),
    };
    let cost = format!(
        "tracing ~{:.1} % of a processor  ",
        interval.overhead * 100.0
    );
    let notes = interval.notes.iter().map(|note| format!("  {note}"));
    let notes = Span::styled(notes.collect::<String>(), Style::new().fg(Color::Yellow));
    Line::from(vec![Span::raw(cost), lost, Span::raw(all), notes])
}

fn footer(state: &State) -> Line<'static> {
    if let Some(message) = &state.message {
        return Line::styled(text::printable(message), Style::new().fg(Color::Red));
    }
    if state.typing || !state.filter.is_empty() {
        let cursor = if state.typing {
            "▏"
        } else {
            "  (esc clears)"
        };
        return Line::raw(format!("/{}{cursor}", text::printable(&state.filter)));
    }
    Line::styled(KEYS, Style::new().add_modifier(Modifier::DIM))
}

/// A column of the table.
struct Head {
    name: &'static str,
    sort: Option<Sort>,
    width: Constraint,
    /// The least width of a terminal that shows the column.
    from: u16,
}

const COLUMNS: usize = 8;
/// No terminal is so wide.
const NEVER: u16 = u16::MAX;

fn heads(state: &State) -> [Head; COLUMNS] {
    let name = match state.what {
        What::Functions => "FUNCTION",
        What::Threads => "THREAD",
    };
    let on_cpu_from = match state.shows_on_cpu() {
        true => 0,
        false => NEVER,
    };
    let head = |name, sort, width, from| Head {
        name,
        sort,
        width: Constraint::Length(width),
        from,
    };
    [
        head("CALLS/S", Some(Sort::Calls), 8, 0),
        head("SELF/S", Some(Sort::SelfTime), 9, 0),
        head("ON-CPU/S", Some(Sort::OnCpu), 9, on_cpu_from),
        head("P50", Some(Sort::Median), 9, 60),
        head("P99", Some(Sort::P99), 9, 50),
        head("MAX", Some(Sort::Max), 9, 70),
        head("TREND", None, 8, 80),
        Head {
            name,
            sort: Some(Sort::Name),
            width: Constraint::Fill(1),
            from: 0,
        },
    ]
}

fn rows(frame: &mut Frame<'_>, state: &State, area: Rect) {
    let heads = heads(state);
    let shown = heads.each_ref().map(|head| area.width >= head.from);
    let kept = |cells: [Cell<'static>; COLUMNS]| {
        let cells = cells.into_iter().zip(shown);
        TableRow::new(cells.filter_map(|(cell, shown)| shown.then_some(cell)))
    };
    let widths = heads.iter().zip(shown);
    let widths = widths.filter_map(|(head, shown)| shown.then_some(head.width));
    let widths: Vec<Constraint> = widths.collect();
    let titles = heads.map(|Head { name, sort, .. }| {
        let style = match sort == Some(state.sort) {
            true => Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            false => Style::new().add_modifier(Modifier::BOLD),
        };
        let alignment = match sort {
            None | Some(Sort::Name) => Alignment::Left,
            Some(_) => Alignment::Right,
        };
        Cell::from(Line::from(name).alignment(alignment)).style(style)
    });
    let rows = state.rows();
    let lines = rows.iter().map(|row| kept(line(state, row)));
    let lines: Vec<TableRow<'_>> = lines.collect();
    let table = Table::new(lines, widths)
        .header(kept(titles))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut marked = TableState::default();
    marked.select(Some(state.marked));
    frame.render_stateful_widget(table, area, &mut marked);
}

fn line(state: &State, row: &Row) -> [Cell<'static>; COLUMNS] {
    let right = |text: String| Cell::from(Line::from(text).alignment(Alignment::Right));
    let time = |ns: Option<u64>| right(ns.map_or_else(|| "-".to_owned(), units::time));
    let off = state.off.contains(&row.name);
    let name = match state.what {
        What::Functions => text::printable(&state.names.show(&row.name)),
        What::Threads => text::printable(&row.name),
    };
    let name = match off {
        true => Line::styled(
            format!("{name} (off)"),
            Style::new().add_modifier(Modifier::DIM),
        ),
        false => Line::styled(name, Style::new().fg(Color::Cyan)),
    };
    [
        right(rate(row.calls_per_second)),
        right(units::time(whole(row.self_ns_per_second))),
        right(row.on_cpu()),
        time(row.median_ns),
        time(row.p99_ns),
        time(row.max_ns),
        Cell::from(trend(state.trend(&row.name))),
        Cell::from(name),
    ]
}

/// Draws callers above and callees below.
fn around(frame: &mut Frame<'_>, state: &State, name: &str, area: Rect) {
    let Around { callers, callees } = state.interval.around(name);
    let [above, middle, below] = Layout::vertical([
        Constraint::Fill(1),
        Constraint::Length(1),
        Constraint::Fill(1),
    ])
    .areas(area);
    frame.render_widget(neighbours("called by", &callers, state.names), above);
    let name = format!(
        "▶ {}  (esc: back)",
        text::printable(&state.names.show(name))
    );
    let style = Style::new().fg(Color::Cyan).add_modifier(Modifier::BOLD);
    frame.render_widget(Paragraph::new(Line::styled(name, style)), middle);
    frame.render_widget(neighbours("calls", &callees, state.names), below);
}

fn neighbours(what: &'static str, all: &[(&str, Edge)], names: Names) -> Table<'static> {
    let right = |text: String| Cell::from(Line::from(text).alignment(Alignment::Right));
    let rows = all.iter().map(|(name, edge)| {
        let name = match *name {
            "" => "(outermost)".to_owned(),
            name => text::printable(&names.show(name)),
        };
        TableRow::new([
            right(rate(edge.calls_per_second)),
            right(units::time(whole(edge.self_ns_per_second))),
            Cell::from(name),
        ])
    });
    let rows: Vec<TableRow<'_>> = rows.collect();
    let widths = [
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Fill(1),
    ];
    let bold = Style::new().add_modifier(Modifier::BOLD);
    Table::new(rows, widths).header(
        TableRow::new([
            right("CALLS/S".to_owned()),
            right("SELF/S".to_owned()),
            Cell::from(what),
        ])
        .style(bold),
    )
}

fn trend(calls: impl Iterator<Item = f64>) -> String {
    let calls: Vec<f64> = calls.collect();
    let most = calls.iter().copied().fold(0.0, f64::max);
    let bar = |calls: &f64| {
        let height = match most > 0.0 {
            true => usize::try_from(whole(calls / most * 7.0)).unwrap_or(0),
            false => 0,
        };
        BARS[height.min(BARS.len() - 1)]
    };
    calls.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use xrayd::types::Switch;

    use super::*;
    use crate::output::golden;
    use crate::top::interval::tests::interval;
    use crate::top::{Action, Header};

    fn header() -> Header {
        Header {
            pid: 4711,
            command: "server".to_owned(),
            functions_on: 211,
            functions: 4000,
            lost: 12,
        }
    }

    fn screen(state: &State, (columns, rows): (u16, u16)) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| draw(frame, state)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(usize::from(columns));
        let rows = rows.map(|row| {
            let row: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
            format!("{}\n", row.trim_end())
        });
        rows.collect()
    }

    fn press(state: &mut State, keys: &[KeyCode]) -> Option<Action> {
        let mut last = None;
        for key in keys {
            last = state.key(KeyEvent::new(*key, KeyModifiers::NONE));
        }
        last
    }

    /// The screen at first, after keys, and on a small terminal.
    #[test]
    fn the_screen_shows_what_keys_ask_for() {
        let mut state = State::default();
        let mut screens = String::new();
        let mut show = |what: &str, state: &State, size| {
            screens += &format!("=== {what}\n{}", screen(state, size));
        };
        show("before the first interval", &state, (80, 8));
        for calls in [100, 400, 200] {
            state.take(interval(header(), calls));
        }
        show("functions", &state, (80, 24));
        press(&mut state, &[KeyCode::Char('s')]);
        show("by calls", &state, (80, 10));
        press(&mut state, &[KeyCode::Down, KeyCode::Enter]);
        show("callers and callees", &state, (80, 14));
        press(&mut state, &[KeyCode::Esc, KeyCode::Char('/')]);
        press(&mut state, &[KeyCode::Char('i'), KeyCode::Char('q')]);
        show("typing a filter", &state, (80, 8));
        press(&mut state, &[KeyCode::Esc, KeyCode::Char('t')]);
        show("threads", &state, (80, 8));
        press(&mut state, &[KeyCode::Char('p')]);
        state.take(interval(header(), 1));
        show("paused, on a small terminal", &state, (40, 6));
        show("on a tiny one", &state, (5, 2));
        golden::check("top.txt", |out| write!(out, "{screens}"));
    }

    #[test]
    fn whole_names_are_shown_on_request() {
        for (names, whole) in [(Names::Short, false), (Names::Full, true)] {
            let mut state = State::new(names);
            state.take(interval(header(), 100));
            let functions = screen(&state, (80, 24));
            press(&mut state, &[KeyCode::Down, KeyCode::Enter]);
            let neighbours = screen(&state, (80, 24));
            for shown in [functions, neighbours] {
                assert!(shown.contains("ns::uniq"), "{shown}");
                assert_eq!(shown.contains("ns::uniq (.llvm.77)"), whole, "{shown}");
            }
        }
    }

    #[test]
    fn a_function_is_switched_off_and_on_again() {
        let mut state = State::default();
        state.take(interval(header(), 100));
        let space = [KeyCode::Char(' ')];
        let Some(Action::Switch { function, to }) = press(&mut state, &space) else {
            panic!("nothing is switched");
        };
        assert_eq!(to, Switch::Off);
        state.switched(function.clone(), to, Ok(()));
        assert!(screen(&state, (80, 24)).contains(&format!("{function} (off)")));
        // The function is among the rows although it has no calls.
        let mut empty = interval(header(), 100);
        empty.rows.clear();
        state.take(empty);
        let again = press(&mut state, &space);
        let to = Switch::On;
        let expected = Action::Switch {
            function: function.clone(),
            to,
        };
        assert_eq!(again, Some(expected));
        state.switched(function.clone(), to, Err("no\u{1b}[2J".to_owned()));
        let shown = screen(&state, (80, 24));
        assert!(shown.lines().any(|line| line.starts_with("no")), "{shown}");
        assert!(!shown.contains('\u{1b}'));
        state.switched(function, to, Ok(()));
        assert!(state.rows().is_empty());
        let quit = press(&mut state, &[KeyCode::Char('q')]);
        assert_eq!(quit, Some(Action::Quit));
    }
}
