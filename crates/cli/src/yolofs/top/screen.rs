//! The screen: what is on it, and what keys do.

use clap::ValueEnum as _;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row as TableRow, Table, TableState};

use super::rows::{COLUMNS, Column, NodeSnapshot, Order, Row, SortBy, node_line, rows};
use node_api::client::CallError;
use node_api::mount_state::MountState;

/// Above it a mount is worth recording anew.
const FAR_PERMILLE: u64 = 200;

/// Rows that Page Up and Page Down move by.
const PAGE: usize = 20;

/// Everything that is shown.
#[derive(Debug)]
pub(super) struct Screen {
    before: Option<NodeSnapshot>,
    now: Option<NodeSnapshot>,
    /// Why the latest look saw nothing.
    trouble: Option<String>,
    order: Order,
    scroll: usize,
}

/// What follows from a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyAction {
    Quit,
    Stay,
}

impl Screen {
    pub(super) const fn new(order: Order) -> Self {
        Self {
            before: None,
            now: None,
            trouble: None,
            order,
            scroll: 0,
        }
    }

    /// Takes in what a look saw. A node that is away leaves its last words on the screen.
    pub(super) fn saw(&mut self, snapshot: Result<NodeSnapshot, CallError>) {
        match snapshot {
            Ok(snapshot) => {
                self.before = self.now.replace(snapshot);
                self.trouble = None;
            }
            Err(error) => self.trouble = Some(format!("{error:#}; trying again")),
        }
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> KeyAction {
        if key.kind == KeyEventKind::Release {
            return KeyAction::Stay;
        }
        let last = self
            .now
            .as_ref()
            .map_or(0, |now| now.mounts.len().saturating_sub(1));
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return KeyAction::Quit;
            }
            KeyCode::Char(key) => {
                if let Some(column) = COLUMNS.iter().find(|column| column.key == key) {
                    self.order = self.order.asked(column.by);
                }
            }
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Down => self.scroll = (self.scroll + 1).min(last),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(PAGE),
            KeyCode::PageDown => self.scroll = (self.scroll + PAGE).min(last),
            KeyCode::Home => self.scroll = 0,
            KeyCode::End => self.scroll = last,
            _ => {}
        }
        KeyAction::Stay
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let lines = [
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ];
        let [head, body, foot] = Layout::vertical(lines).areas(frame.area());
        frame.render_widget(self.head(), head);
        if let Some(now) = &self.now {
            let rows = rows(self.before.as_ref(), now, self.order);
            let mut state =
                TableState::new().with_offset(self.scroll.min(rows.len().saturating_sub(1)));
            frame.render_stateful_widget(self.table(&rows, body), body, &mut state);
        }
        frame.render_widget(keys(), foot);
    }

    fn head(&self) -> Line<'_> {
        match (&self.trouble, &self.now) {
            (Some(trouble), _) => Line::styled(trouble.as_str(), Style::new().fg(Color::Red)),
            (None, Some(now)) => Line::styled(node_line(&now.node), Modifier::BOLD),
            (None, None) => Line::raw("looking ..."),
        }
    }

    fn table(&self, rows: &[Row], area: Rect) -> Table<'static> {
        let widths = widths(area.width);
        let cells = |row: &Row| {
            let cells = COLUMNS.iter().zip(widths).map(|(column, width)| {
                let text = (column.cell)(row);
                aligned(column, tail(&text, usize::from(width)))
            });
            TableRow::new(cells.collect::<Vec<_>>()).style(style(row))
        };
        let titles = COLUMNS.iter().map(|column| {
            let chosen = column.by == self.order.by;
            let style = if chosen {
                Modifier::REVERSED
            } else {
                Modifier::empty()
            };
            aligned(column, column.title.to_owned()).style(style)
        });
        Table::new(rows.iter().map(cells), widths.map(Constraint::Length))
            .header(TableRow::new(titles))
            .column_spacing(SPACING)
    }
}

/// Between columns.
const SPACING: u16 = 1;

/// Numbers stand under each other; names begin at the left.
fn aligned(column: &Column, text: String) -> Cell<'static> {
    match column.by {
        SortBy::Name | SortBy::State => Cell::new(Line::raw(text)),
        _ => Cell::new(Line::raw(text).right_aligned()),
    }
}

/// Returns the columns' widths: the first takes what the others leave.
fn widths(all: u16) -> [u16; COLUMNS.len()] {
    let mut widths = [0; COLUMNS.len()];
    for (width, column) in widths.iter_mut().zip(&COLUMNS) {
        *width = column.width;
    }
    let others: u16 = widths[1..].iter().map(|width| width + SPACING).sum();
    widths[0] = all.saturating_sub(others).max(COLUMNS[0].width);
    widths
}

/// Cuts a text at its beginning: what tells paths apart is at their end.
fn tail(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept = text.chars().skip(length + 1 - width);
    std::iter::once('…').chain(kept).collect()
}

fn style(row: &Row) -> Style {
    let far = row
        .divergence_permille
        .is_some_and(|permille| permille > FAR_PERMILLE);
    match row.state {
        MountState::Serving if far => Style::new().fg(Color::Yellow),
        MountState::Serving => Style::new(),
        _ => Style::new().fg(Color::Red),
    }
}

fn keys() -> Line<'static> {
    let sorts = COLUMNS.iter().filter_map(|column| {
        let name = column.by.to_possible_value()?;
        Some(format!("{} {}", column.key, name.get_name()))
    });
    let sorts: Vec<_> = sorts.collect();
    Line::styled(format!("q quit | {}", sorts.join("  ")), Modifier::DIM)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use node_api::memory::two_sights;

    fn screen() -> Screen {
        let mut screen = Screen::new(Order::by(SortBy::Name));
        let start = Instant::now();
        for (n, (node, mounts)) in (0..).zip(two_sights()) {
            let at = start + Duration::from_secs(2 * n);
            screen.saw(Ok(NodeSnapshot { at, node, mounts }));
        }
        screen
    }

    fn terminal(screen: &Screen, width: u16, height: u16) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal
    }

    fn drawn(screen: &Screen, width: u16, height: u16) -> Vec<String> {
        let terminal = terminal(screen, width, height);
        let cells = terminal.backend().buffer().content();
        let lines = cells.chunks(usize::from(width));
        lines
            .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>())
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> KeyAction {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn first_column(screen: &Screen) -> Vec<String> {
        let lines = drawn(screen, 90, 8);
        let names = lines[2..6]
            .iter()
            .map(|line| line.split(' ').next().unwrap().to_owned());
        names.collect()
    }

    #[test]
    fn it_looks_like_this() {
        let expected = [
            "yolofs 0.1.0, pid 4200, up 1 d 0 h, 4 mounts, 1 worker, 0 restarts, kept by systemd",
            "MOUNT POINT                   STATE        READS/S FROM BOOT   SOURCE/S  DIVERGED RESTARTS",
            "/mnt/a                        serving           50    32.3 %    2.0 MiB     2.5 %        2",
            "/mnt/b                        restarting         -         -          -         -        3",
            "/mnt/c                        serving            5   100.0 %        0 B    30.0 %        0",
            "/mnt/new                      serving            -    97.6 %          -     2.5 %        2",
            "",
            "q quit | n name  t state  r reads  b boot  s source  d divergence  x restarts",
        ];
        assert_eq!(drawn(&screen(), 90, 8), expected);
    }

    #[test]
    fn what_is_wrong_has_a_colour() {
        let terminal = terminal(&screen(), 90, 8);
        let colour = |line: u16| terminal.backend().buffer()[(0, line)].fg;
        assert_eq!(
            [2, 3, 4].map(colour),
            [Color::Reset, Color::Red, Color::Yellow]
        );
    }

    #[test]
    fn keys_sort_and_scroll() {
        let mut screen = screen();
        assert_eq!(press(&mut screen, KeyCode::Char('d')), KeyAction::Stay);
        assert_eq!(
            first_column(&screen),
            ["/mnt/c", "/mnt/a", "/mnt/new", "/mnt/b"]
        );
        press(&mut screen, KeyCode::Char('d'));
        assert_eq!(
            first_column(&screen),
            ["/mnt/b", "/mnt/new", "/mnt/a", "/mnt/c"]
        );
        press(&mut screen, KeyCode::Char('n'));
        press(&mut screen, KeyCode::Down);
        assert_eq!(first_column(&screen), ["/mnt/b", "/mnt/c", "/mnt/new", ""]);
        press(&mut screen, KeyCode::PageDown);
        assert_eq!(first_column(&screen), ["/mnt/new", "", "", ""]);
        press(&mut screen, KeyCode::PageUp);
        assert_eq!(first_column(&screen)[0], "/mnt/a");
        for code in [KeyCode::Char('q'), KeyCode::Esc] {
            assert_eq!(press(&mut screen, code), KeyAction::Quit);
        }
        let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.press(control), KeyAction::Quit);
    }

    #[test]
    fn a_node_that_is_away_comes_back() {
        let mut screen = screen();
        let now = screen.now.clone().unwrap();
        screen.saw(Err(CallError::Nobody("/run/yolofs/node.sock".into())));
        let lines = drawn(&screen, 90, 8);
        assert_eq!(
            lines[0],
            "no node listens on /run/yolofs/node.sock; trying again"
        );
        assert!(lines[2].starts_with("/mnt/a "), "{lines:?}");
        screen.saw(Ok(now));
        assert!(drawn(&screen, 90, 8)[0].starts_with("yolofs 0.1.0"));
    }

    #[test]
    fn narrow_and_empty_screens_are_drawn() {
        let mut screen = screen();
        for mount in screen.now.iter_mut().flat_map(|now| &mut now.mounts) {
            mount.status.mountpoint = "/var/lib/docker/overlay2/0123456789abcdef/diff".into();
        }
        let lines = drawn(&screen, 80, 8);
        assert!(lines[2].starts_with("…3456789abcdef/diff "), "{lines:?}");
        for (width, height) in [(1, 1), (10, 2), (300, 100)] {
            drawn(&screen, width, height);
            drawn(&Screen::new(Order::by(SortBy::Boot)), width, height);
        }
    }
}
