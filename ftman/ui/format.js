// Numbers and times as the command line spells them.

export function bytes(count) {
  for (const [unit, name] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "KB"]]) {
    if (count < unit) continue;
    const value = count / unit;
    return `${value >= 10 || Number.isInteger(value) ? Math.floor(value) : value.toFixed(1)} ${name}`;
  }
  return `${Math.floor(count || 0)} B`;
}

export function parameters(count) {
  if (count >= 1e9) return `${trim(count / 1e9, 1)}B`;
  if (count >= 1e6) return `${trim(count / 1e6, 0)}M`;
  return count >= 1000 ? `${Math.round(count / 1000)}K` : String(count);
}

export function percent(part, whole) {
  if (!whole) return "-";
  const share = Math.round((100 * part) / whole);
  return share === 0 && part > 0 ? "<1 %" : `${share} %`;
}

export function whole(count) {
  return Math.round(count).toLocaleString("en-US");
}

// 0:07, 6:58, 1:02:03
export function clock(seconds) {
  const all = Math.max(0, Math.round(seconds));
  const two = (number) => String(number).padStart(2, "0");
  const [hours, minutes, rest] = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60];
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

// "3 days ago", "in 4 minutes"
export function ago(stamp) {
  const seconds = (Date.parse(stamp) - Date.now()) / 1000;
  if (Number.isNaN(seconds)) return "";
  if (Math.abs(seconds) < 45) return seconds > 0 ? "in a moment" : "just now";
  for (const [size, name] of [[31536e3, "year"], [2592e3, "month"], [86400, "day"], [3600, "hour"], [60, "minute"]]) {
    const count = Math.round(Math.abs(seconds) / size);
    if (count < 1) continue;
    const span = `${count} ${name}${count === 1 ? "" : "s"}`;
    return seconds > 0 ? `in ${span}` : `${span} ago`;
  }
  return "just now";
}

function trim(value, places) {
  return value.toFixed(places).replace(/\.0+$/, "");
}
