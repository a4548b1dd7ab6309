// Where the managers are and what they were told to answer: stage.py for Node.
export const URL = process.env.CLIENTS_URL;
export const REAL_URL = process.env.CLIENTS_REAL_URL;
export const [MODEL, TALKER, VECTORS] = ["caller", "talker", "vectors"];
export const [REAL_MODEL, REAL_TOOLS] = ["real", "real-tools"];
export const SAYS = "Hello world";
export const AFTER_TOOL = "It is 18 C in Paris.";
export const [THOUGHT, AFTER_THOUGHT] = ["Hmm, weather.", "Sunny."];
export const ADA = { name: "Ada", age: 36 };
export const FLAT = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};
export const PERSON_SCHEMA = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};
export const said = (content) => [{ role: "user", content }];
export const needsReal = { skip: REAL_URL ? false : "no real model: make clients MODEL=..." };
